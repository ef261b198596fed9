"""What the commands ask and show: flags over a file over a preset, seeds, a table of a run, a study's results."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from intercontinet.errors import InvalidSetting, WriteError
from intercontinet.learners.catalogue import METHODS
from intercontinet.study.command import Asked, asked, epochs_of, outcome, present
from intercontinet.study.config import configure
from intercontinet.study.folder import start
from intercontinet.study.run import Run
from intercontinet.study.store import save_record
from tests.study.records import finals, record, seed_record


def ask(*settings: str, file: Path | None = None, **flags: Any) -> Asked:
    return asked(flags, settings, file)


def shown(thing: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# What is asked for.


def test_nothing_asked_for_is_intervals_on_digits() -> None:
    wanted = ask(dataset=None, method=None)
    assert wanted == Asked(configure(), "auto", Path("runs/digits-task-intercontinet"), ())


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "dataset: mnist\nmethod: ewc\nscenario: class\nseeds: 3\nepochs: 4\ntasks: 2\nnet: mlp-5\naugment: false\n"
        "device: cpu\nout: there\nsettings: {strength: 7, rate: 0.5}\n"
    )
    wanted = ask(file=file)
    config = wanted.config
    assert (config.dataset, config.method, config.scenario, config.seeds) == ("mnist", "ewc", "class", (0, 1, 2))
    assert (config.tasks, config.net, wanted.device, wanted.out) == (2, "mlp-5", "cpu", Path("there"))
    assert [config.settings[name] for name in ("strength", "rate", "epochs", "batch_size")] == [7, 0.5, 4, 128]
    over = ask("strength=9", file=file, seeds="8,6", epochs=2, out="here", scenario=None).config
    assert (over.seeds, over.scenario, over.dataset) == ((8, 6), "class", "mnist")
    assert [over.settings[name] for name in ("strength", "rate", "epochs")] == [9, 0.5, 2]


def test_settings_are_read_as_yaml() -> None:
    settings = ask("rate=1e-3", "later_rate=null", "milestones=[3, 5]", "head=shared", "radii_epochs=0").config.settings
    found = [settings[name] for name in ("rate", "later_rate", "milestones", "head", "radii_epochs")]
    assert found == [0.001, None, (3, 5), "shared", 0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rate", "write NAME=VALUE"),
        ("=3", "write NAME=VALUE"),
        ("rate=", "rate is None"),
        ("rate=[1", "--set rate=[1 is no valid YAML"),
        ("rats=3", "did you mean 'rate'"),
        ("seeds=3", "it is an option of its own, --seeds"),
        ("milestones=50,90", "milestones is '50,90'; it must be a list of whole numbers"),
        ("rate=!!python/name:os.system", "no valid YAML"),
    ],
)
def test_a_setting_that_is_none_is_named(setting: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(words)):
        ask(setting)


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("3", (0, 1, 2)), (3, (0, 1, 2)), ("3,7,9", (3, 7, 9)), ("5,", (5,)), (" 4 , 2 ", (4, 2)), ([9, 1], (9, 1))],
)
def test_seeds_are_how_many_or_which(given: object, seeds: tuple[int, ...]) -> None:
    assert ask(seeds=given).config.seeds == seeds


@pytest.mark.parametrize(
    "given", ["0", "-1", "many", "", "1.5", 2.5, "1,a", ",", "3,3", "-1,2", [1.7], [None], [True], [], {}, True]
)
def test_other_seeds_are_refused(given: object) -> None:
    with pytest.raises(InvalidSetting, match="seeds"):
        ask(seeds=given)


@pytest.mark.parametrize("given", ["99999999999999999999", "20000000", 10_001, "9" * 4000])
def test_more_seeds_than_a_run_takes_are_refused_before_they_are_counted_out(given: object) -> None:
    with pytest.raises(InvalidSetting, match="and one run takes at most 10,000: give fewer"):
        ask(seeds=given)


def test_a_folder_without_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("out: ''")
    with pytest.raises(InvalidSetting, match="out is empty"):
        ask(file=tmp_path / "run.yaml")


def test_keep_is_for_methods_that_promise_and_others_are_told() -> None:
    assert ask(keep=0.5).config.keep == 0.5
    plain = ask(keep=0.5, method="mas")
    assert plain.config.keep is None
    assert plain.notes == ("keep is left out: mas promises nothing",)
    with pytest.raises(InvalidSetting, match="did you mean 'mas'"):
        ask(keep=0.5, method="mass")


def test_a_run_on_ones_own_data_is_named_after_the_file() -> None:
    assert ask(dataset="my/own.npz", method="sgd", scenario="class").out == Path("runs/own-class-sgd")


@pytest.mark.parametrize("method", [method for method in METHODS if method != "exact"])
def test_epochs_are_counted_over_all_phases(method: str) -> None:
    assert epochs_of(configure(method=method, epochs=7)) == 7


def test_counting_is_done_in_one_go_and_refuses_epochs() -> None:
    assert epochs_of(configure(method="exact")) == 1
    with pytest.raises(InvalidSetting, match=r"method 'exact', whose number of passes is fixed: leave it out"):
        configure(method="exact", epochs=7)


# What is shown.


def test_a_run_is_shown_a_row_a_seed_and_a_missed_promise_in_red() -> None:
    seeds = [seed_record(3, certified=(90, 80), kept=(True, False)), seed_record(12, final=0.5, certified=(7, 6))]
    text = shown(outcome(record(seeds, method="intercontinet")))
    assert "mnist, task-incremental, InterContiNet, enforced" in text
    assert re.search(r"3 .*90\.00%.*0\.900.*\x1b\[31m *0\.800 not kept\x1b\[0m.*2\.0", text)
    assert re.search(r"12 .*50\.00%.*0\.070.*0\.060", text)


def test_what_was_hardly_learned_is_yellow_and_what_is_unseen_has_a_line_of_its_own() -> None:
    seed = seed_record(0, certified=(30, 80))
    seed["floors"][0] |= {"accuracy": 0.4, "unseen_certified": 9, "unseen_total": 10, "unseen_floor": 0.60669}
    text = shown(outcome(record([seed], method="exact")))
    assert re.search(r"\x1b\[33m *~0\.300\x1b\[0m.* 0\.800 ", text)
    assert ">=0.606" in text, "rounded down"
    assert "Yellow and ~" in text and "after >=" in text
    text = shown(outcome(record([seed_record(0, certified=(30, 80))], method="intercontinet")))
    assert "certain." in text and ">=" not in text, "which is said where there is any"


@pytest.mark.parametrize(
    ("width", "row", "words"),
    [
        (120, r"0 .*85\.00%.* 90\.0% .* 80\.0% ", "Below each task, that on it alone"),
        (54, r"0/1 .* 90\.0% ", "Beside each task, that on it alone"),
    ],
)
def test_methods_without_a_promise_tell_the_accuracy_of_each_task(width: int, row: str, words: str) -> None:
    seed = seed_record(final=0.9)
    seed["accuracy_matrix"][-1], seed["average_accuracy"] = [0.9, 0.8], 0.85
    text = shown(outcome(record([seed])), width)
    assert re.search(row, text)
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    assert words in plain and "promises nothing" in plain
    seed["accuracy_matrix"], seed["floors"] = [[0.7, 0.1]], seed["floors"][:1]
    text = shown(outcome(record([seed])), width)
    assert "70.0%" in text and "10.0%" not in text, "of what was learned alone"


def test_where_tasks_find_no_room_the_lowest_accuracy_is_told() -> None:
    tasks = ["a task of a long name", "one of another"]
    seeds = [seed_record(seed, tasks=tasks) for seed in range(6)]
    seeds[4]["accuracy_matrix"][-1], seeds[4]["average_accuracy"] = [0.9, 0.8], 0.85
    text = shown(outcome(record(seeds, tasks=tasks)), 78)
    assert re.search(r"4 .*85\.00%.* 80\.0% .*one of another", text) and "Under lowest, the least on any task" in text


def test_runs_without_an_end_have_blanks() -> None:
    begun: dict[str, Any] = {"seed": 5, "average_accuracy": None, "forgetting": None, "floors": [], "seconds": 0.0}
    begun["accuracy_matrix"] = []
    text = shown(outcome(record([begun])))
    assert "│    5 │          │            │     │     │     0.0 │" in text and "promises" not in text


def test_a_run_is_shown_with_the_accuracy_that_tables_have() -> None:
    """Tasks of 100 and 300 examples: 0.5 and 0.75 are 0.625 over tasks, and 0.6875 over examples."""
    summary = record([seed_record(0), seed_record(1)])
    for seed, last in zip(summary["seeds"], ([0.5, 0.75], [0.5, 0.85]), strict=True):
        seed["accuracy_matrix"][-1] = last
    summary["test_examples"] = [100, 300]
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown(outcome(summary))).split())
    assert "mean over tasks; over all test examples, as tables have it: 72.50 ± 5.30 %. Below" in text
    promising = seed_record(3, certified=(90, 80))
    assert "certain" in shown(outcome(record([promising], method="intercontinet"))), "of which there is more to say"


@pytest.mark.parametrize(
    ("seeds", "width", "words"), [(1, 120, "Below each"), (1, 54, "Beside each"), (6, 64, "Under lowest")]
)
def test_names_with_brackets_are_no_markup(seeds: int, width: int, words: str) -> None:
    tasks = ["[bold]", "cats[/b]", "cow"]
    every = [seed_record(seed, tasks=tasks, certified=(90, 70, 80)) for seed in range(seeds)]
    content = record(every, dataset="/tmp/data[v2][/b].npz", tasks=tasks, test_examples=[9] * 3, method="intercontinet")
    text = shown(outcome(content), width)
    assert words in text and "/tmp/data[v2][/b].npz" in text and "cats[/b]" in text
    assert ("[bold]" in text) is (words != "Under lowest")


@pytest.mark.parametrize(("seeds", "words"), [(1, "Beside each task"), (3, "Beside each task"), (9, "Under lowest")])
def test_no_number_of_twenty_tasks_is_cut_on_a_narrow_terminal(seeds: int, words: str) -> None:
    tasks = ["/".join(str(5 * task + k) for k in range(5)) for task in range(20)]
    certified, kept = [40 + task for task in range(20)], [task != 7 for task in range(20)]
    every = [seed_record(seed, certified=certified, kept=kept, tasks=tasks) for seed in range(seeds)]
    for seed in every:
        for floor in seed["floors"]:
            floor |= {"unseen_certified": 9, "unseen_total": 10, "unseen_floor": 0.6}
    content = record(every, tasks=tasks, test_examples=[100] * 20, method="exact", dataset="cifar-100")
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(outcome(content), 80))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert words in text and text.count("0.400") == text.count("0.470 not kept") == seeds
    assert text.count("90.00%") == seeds and "35/36/37/38/39" in text
    assert ("0.410" in text) is (words != "Under lowest")


def presented(study: str, folder: Path, *only: str, draw: bool = True) -> str:
    console = Console(file=io.StringIO(), width=140)
    present(study, folder / "results", folder / "docs", console, only, draw)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_is_shown_beside_the_papers(tmp_path: Path) -> None:
    assert "not run" in presented("table1", tmp_path)
    save_record(tmp_path / "results" / "table1", record(finals(0.98, 0.99)))
    text = presented("table1", tmp_path)
    assert re.search(r"EWC .*98\.50 ± 0\.71.*±", text)
    assert not (tmp_path / "docs").exists()


def test_some_cells_are_shown_by_their_names(tmp_path: Path) -> None:
    results = tmp_path / "results"
    save_record(results / "table1", record(finals(0.98, 0.99)))
    save_record(results / "table1", record(method="intercontinet"))
    save_record(results / "tradeoff", record(method="intercontinet", scenario="class", variant="keep-0.9"))
    save_record(results / "tradeoff", record(method="intercontinet", scenario="domain", variant="keep-0.9"))
    save_record(results / "guarantee", record(method="intercontinet", variant="volume"))
    assert presented("table1", tmp_path, "task/intercontinet", "class/ewc").splitlines() == [
        "task/intercontinet: 90.00 ± 0.00, 2 seeds, paper 98.93 ± 0.05; certified .90 .80",
        "class/ewc: not run, paper 18.90 ± 0.06; certified not run",
        "Epochs a task: 30.",
    ]
    assert presented("tradeoff", tmp_path, "class/intercontinet/keep-0.9").splitlines() == [
        "class/intercontinet/keep-0.9: 90.00 ± 0.00, 2 seeds; certified .90 .80",
        "Epochs a task: 30.",
        f"Drew tradeoff into {tmp_path / 'docs' / 'images'}, as PNG, SVG and CSV.",
    ]
    rows = [line for line in presented("guarantee", tmp_path, "volume").splitlines() if "mnist" in line]
    assert len(rows) == 1 and "mnist, task" in rows[0]


@pytest.mark.parametrize(("study", "drawn"), [("figure3", {"figure3"}), ("figure4", {"figure4", "figure5"})])
def test_a_figure_is_drawn_where_there_is_something_to_draw(tmp_path: Path, study: str, drawn: set[str]) -> None:
    assert "holds no records yet" in presented(study, tmp_path)
    point = {"task": 0, "phase": "centres", "epoch": 1, "current": 0.9, "first": 0.8, "sum_of_radii": 3.0}
    content = (
        record([seed_record(certified=(9, 8), curve=[point])], dataset="fashion-mnist", scenario="domain",
               method="intercontinet-published", variant="keep-0.9")
        if study == "figure3"
        else record(dataset="cifar-100")
    )  # fmt: skip
    save_record(tmp_path / "results" / study, content)
    assert "certified" in presented(study, tmp_path, draw=False) and not (tmp_path / "docs").exists()
    assert str(tmp_path / "docs" / "images") in presented(study, tmp_path)
    found = {path.name for path in (tmp_path / "docs" / "images").iterdir()}
    assert found == {f"{name}.{ending}" for name in drawn for ending in ("png", "svg", "csv")}


def test_a_promise_that_fell_short_is_marked_without_colours_too(tmp_path: Path) -> None:
    broken = record([seed_record(certified=(90, 80), kept=(True, False))], method="intercontinet", variant="volume")
    save_record(tmp_path / "results" / "guarantee", broken)
    save_record(tmp_path / "results" / "table1", {**broken, "variant": ""})
    text = presented("guarantee", tmp_path, "volume")
    assert ".90 .80*" in text and "*: less was certain than was promised" in text and "Epochs a task: 30." in text
    assert presented("table1", tmp_path, "task/intercontinet").splitlines() == [
        "task/intercontinet: 90.00, 1 seed, paper 98.93 ± 0.05; certified .90 .80*",
        "*: less was certain than was promised, with one seed or more.",
        "Epochs a task: 30.",
    ]


def test_figures_need_a_folder_that_can_be_made(tmp_path: Path) -> None:
    save_record(tmp_path / "results" / "figure4", record(dataset="cifar-100"))
    (tmp_path / "docs").write_text("in the way")
    with pytest.raises(WriteError, match="--docs"):
        presented("figure4", tmp_path)


@pytest.mark.parametrize(
    ("flags", "settings", "words"),
    [
        ({"keep": 0.5}, ["keep=0.9"], "--keep and --set keep"),
        ({"epochs": 9}, ["centre_epochs=2"], "--epochs and --set centre_epochs"),
        ({"epochs": 5, "method": "sgd"}, ["epochs=7"], "--epochs and --set epochs"),
    ],
)
def test_what_is_said_twice_is_refused(flags: dict[str, Any], settings: list[str], words: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{words} speak of the same thing: leave one of them out"):
        asked(flags, settings, None)
    assert asked({**flags, "keep": None, "epochs": None}, settings, None).config.settings


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="--set keep is given twice"):
        ask("keep=0.5", "rate=0.1", "keep=0.9")


def test_what_a_run_noted_of_itself_is_no_file_of_options(tmp_path: Path) -> None:
    run = Run(ask(method="ewc", epochs=1).config, "cpu")
    start(tmp_path, run)
    (tmp_path / "summary.json").write_text(json.dumps(run.summary(run.begin())))
    for name in ("config.json", "summary.json"):
        with pytest.raises(InvalidSetting, match=rf"{name} is what a run noted of itself.* --resume goes on with that"):
            ask(file=tmp_path / name)


def test_settings_on_the_command_line_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("keep: 0.9\nepochs: 9\n")
    config = asked({}, ["keep=0.5", "centre_epochs=2"], file).config
    assert (config.settings["keep"], config.settings["centre_epochs"]) == (0.5, 2)
    file.write_text("keep: 0.9\nsettings: {keep: 0.5}\n")
    with pytest.raises(InvalidSetting, match=r"run.yaml: keep and keep under settings speak of the same thing"):
        asked({}, [], file)


@pytest.mark.parametrize("width", [60, 40])
def test_on_the_narrowest_terminals_numbers_and_names_stand_below_each_other(width: int) -> None:
    tasks = [f"a name of some length, number {task}" for task in range(20)]
    every = [
        seed_record(seed, certified=[50] * 20, kept=[task != 7 for task in range(20)], tasks=tasks) for seed in (0, 1)
    ]
    text = shown(outcome(record(every, tasks=tasks, test_examples=[100] * 20, method="intercontinet")), width)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert text.count("0.500 not kept") == text.count("number 7") == 2, "a promise that fell short has its name"
    assert text.count("90.00%") == 2
