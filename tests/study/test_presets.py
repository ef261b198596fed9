"""Presets say what the paper says, in every scenario."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intercontinet.learners.catalogue import METHODS
from intercontinet.study.config import build_method, configure
from intercontinet.study.sources import PRESETS, load_preset
from intercontinet.tasks import SCENARIOS

SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex"
INTERVALS = ("intercontinet", "intercontinet-published")
PROMISING = (*INTERVALS, "exact")
NAMES = {"L2": "l2", "EWC": "ewc", "Synaptic Intelligence": "si", "MAS": "mas", "LwF": "lwf"}
SETTINGS = {r"$\lambda$": "strength", r"$\alpha$": "strength", "temperature": "temperature"}
SHORT = {"IT": "task", "ID": "domain", "IC": "class"}

Baselines = dict[tuple[str, str], float]
BASELINES: dict[str, Baselines] = {  # Tables 4, 5 and 6
    "mnist": {
        ("l2", "strength"): 0.1, ("ewc", "strength"): 2048, ("si", "strength"): 2048, ("mas", "strength"): 1,
        ("lwf", "temperature"): 0.5, ("lwf", "strength"): 0.5,
    },
    "cifar-10": {
        ("l2", "strength"): 0.05, ("ewc", "strength"): 0.05, ("si", "strength"): 1.0, ("mas", "strength"): 0.005,
        ("lwf", "temperature"): 1.0, ("lwf", "strength"): 1.0,
    },
    "cifar-100": {
        ("l2", "strength"): 0.005, ("ewc", "strength"): 0.0005, ("si", "strength"): 0.1, ("mas", "strength"): 0.0005,
        ("lwf", "temperature"): 1.0, ("lwf", "strength"): 0.5,
    },
}  # fmt: skip
LABELS = {"mnist": "tab:baseline_mnist_hps", "cifar-10": "tab:baseline_c10_hps", "cifar-100": "tab:baseline_c100_hps"}
BOXES = {  # Table 7: keep, rates of centres and radii, first radius
    ("mnist", "task"): (0.9, 1.0, 100, 1),
    ("mnist", "domain"): (0.8, 1.0, 1000, 1),
    ("mnist", "class"): (0.8, 0.001, 1.0, 1),
    ("fashion-mnist", "task"): (0.9, 0.001, 100, 1),
    ("fashion-mnist", "domain"): (0.8, 0.001, 10, 1),
    ("fashion-mnist", "class"): (0.9, 0.001, 0.1, 1),
    ("cifar-10", "task"): (0.1, 0.1, 0.1, 0.1),
    ("cifar-10", "domain"): (0.1, 0.1, 1e-10, 0.1),
    ("cifar-10", "class"): (0.1, 0.1, 1e-20, 0.1),
    ("cifar-100", "task"): (0.05, 0.001, 100, 0.5),
}
LATER_RATES = {  # of tasks after the first: the code's, where the paper lists one rate for all tasks
    ("mnist", "domain"): 10.0,
    ("fashion-mnist", "task"): 1.0,
    ("fashion-mnist", "domain"): 10.0,
}
OFFLINE_RATES = {"mnist": 0.5, "fashion-mnist": 0.001, "cifar-10": 0.1, "cifar-100": 0.1}


@pytest.mark.parametrize("name", PRESETS)
def test_every_method_of_every_preset_configures_in_every_scenario(name: str) -> None:
    assert load_preset(name).name == name
    for method, kind in METHODS.items():
        for scenario in SCENARIOS:
            config = configure(name, scenario, method)
            assert build_method(config) is not None
            assert {key: config.settings[key] for key in kind.fixed} == kind.fixed
            assert (config.keep is None) == (method not in PROMISING)
            assert (config.net == load_preset(name).net) == (method != "exact"), "encoders are the one method's own"


@pytest.mark.parametrize(
    ("dataset", "table"),
    [("mnist", "mnist"), ("fashion-mnist", "mnist"), ("cifar-10", "cifar-10"), ("cifar-100", "cifar-100")],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_baselines_are_those_of_tables_4_to_6(dataset: str, table: str, scenario: str) -> None:
    for (method, setting), value in BASELINES[table].items():
        assert configure(dataset, scenario, method).settings[setting] == value, method
    strengths = [configure(dataset, scenario, method).settings["strength"] for method in ("ewc", "oewc")]
    assert strengths[0] == strengths[1], "the paper lists EWC alone"


@pytest.mark.parametrize(("dataset", "scenario"), BOXES)
@pytest.mark.parametrize("method", INTERVALS)
def test_intervals_are_those_of_table_7(dataset: str, scenario: str, method: str) -> None:
    settings = configure(dataset, scenario, method).settings
    found = tuple(settings[name] for name in ("keep", "rate", "radii_rate", "radius"))
    assert found == BOXES[dataset, scenario]
    assert settings["later_rate"] == LATER_RATES.get((dataset, scenario))
    assert (settings["optimizer"], settings["radii_start"], settings["batch_size"]) == ("sgd", 5.0, 128)
    assert settings["head"] == ("per-task" if scenario == "task" else "shared")


@pytest.mark.parametrize(
    ("dataset", "rate", "epochs", "milestones", "net"),
    [
        ("mnist", 0.001, 30, (), "mlp-400-400"),
        ("fashion-mnist", 0.001, 30, (), "mlp-400-400"),
        ("cifar-10", 0.1, 100, (50, 90), "alexnet"),
        ("cifar-100", 0.1, 100, (50, 90), "alexnet"),
    ],
)
def test_schedules_are_those_of_the_paper_but_for_ten_times_its_rate_on_cifar(
    dataset: str, rate: float, epochs: int, milestones: tuple[int, ...], net: str
) -> None:
    """Its text has 0.01 there, its published configuration 0.1."""
    for method in ("sgd", "l2", "ewc", "oewc", "si", "mas", "lwf"):
        config = configure(dataset, "class", method)
        found = tuple(config.settings[name] for name in ("optimizer", "rate", "epochs", "batch_size", "milestones"))
        assert found == ("sgd", rate, epochs, 128, milestones), method
        assert config.net == net
    offline = configure(dataset, "class", "offline").settings
    found = tuple(offline[name] for name in ("optimizer", "rate", "epochs", "batch_size", "milestones"))
    assert found == ("sgd", OFFLINE_RATES[dataset], 100, 128, milestones)


@pytest.mark.parametrize(
    ("dataset", "split", "augment", "batches"),
    [
        ("mnist", (20, 10), False, {"task": 640, "domain": 128, "class": 128}),
        ("fashion-mnist", (20, 10), False, {"task": 640, "domain": 128, "class": 128}),
        ("cifar-10", (95, 5), True, {"task": 128, "domain": 128, "class": 128}),
        ("cifar-100", (95, 5), True, {"task": 128, "domain": 128, "class": 128}),
    ],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_the_paper_leaves_out_is_as_docs_method_says(
    dataset: str, split: tuple[int, int], augment: bool, batches: dict[str, int], scenario: str
) -> None:
    for method in INTERVALS:
        config = configure(dataset, scenario, method)
        assert (config.settings["centre_epochs"], config.settings["radii_epochs"]) == split
        shift = "plain" if (dataset, scenario) == ("fashion-mnist", "class") else "scaled"
        assert (config.settings["margins"], config.settings["shift"]) == ("separate", shift)
        assert config.augment is augment
    assert configure(dataset, scenario, "offline").settings["batch_size"] == batches[scenario]
    for method in ("ewc", "oewc", "mas"):
        assert configure(dataset, scenario, method).settings["decay"] == 1.0, "importances add up"
    si = configure(dataset, scenario, "si").settings
    assert (si["limit"], si["damping"]) == (0.001, 1e-7)
    for method in ("sgd", "l2", "ewc", "si", "mas", "lwf"):
        assert configure(dataset, scenario, method).augment is augment


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
def test_adam_is_the_sgd_baseline_with_another_optimizer(dataset: str) -> None:
    adam, sgd = (configure(dataset, "class", method).settings for method in ("adam", "sgd"))
    assert adam == {**sgd, "optimizer": "adam"}


def rows_of(source: str, label: str) -> list[list[str]]:
    """The cells of the table with this label, a list a row."""
    body = source.split(rf"\label{{{label}}}")[1].split(r"\bottomrule")[0].split(r"\midrule", 1)[1]
    body = re.sub(r"\\midrule|\\multirow\{\d\}\{=\}", "", body)
    return [[cell.strip(" {}\n") for cell in row.split("&")] for row in body.split(r"\\") if row.strip()]


def number(cell: str) -> float:
    power = re.fullmatch(r"10\^\{(-\d+)\}", cell.strip("$"))
    return float(f"1e{power[1]}") if power else float(cell.strip("$"))


def test_the_tables_above_are_the_papers() -> None:
    if not SOURCE.exists():
        pytest.skip("the paper's source, paper.tex, is not at hand: its settings were not read again")
    source = SOURCE.read_text(encoding="utf-8")
    for dataset, label in LABELS.items():
        found, method = {}, ""
        for name, setting, value in rows_of(source, label):
            method = NAMES[name] if name else method
            found[method, SETTINGS[setting]] = number(value)
        assert found == BASELINES[dataset]
    boxes, dataset = {}, ""
    for name, setting, *values in rows_of(source, "tab:interval_hyperparams"):
        dataset = name.lower().replace("fashionmnist", "fashion-mnist") or dataset
        boxes[dataset, SHORT[setting]] = tuple(number(value) for value in values)
    assert boxes == BOXES
