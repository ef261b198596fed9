"""Configurations: slips are named, what is asked for goes before the preset, and epochs are shared out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from intercontinet.errors import InvalidSetting
from intercontinet.learners.ewc import EWC
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.study.config import build_method, configure
from intercontinet.study.sources import load_preset, read_preset, read_yaml

# Slips.


@pytest.mark.parametrize(
    ("preset", "wrong", "right"),
    [
        ({"nett": "alexnet"}, "nett", "net"),
        ({"shared": {"epoch": 3}}, "epoch", "epochs"),
        ({"methods": {"ewk": {}}}, "ewk", "ewc"),
        ({"methods": {"ewc": {"strenght": 3}}}, "strenght", "strength"),
        ({"methods": {"ewc": {"tesk": {}}}}, "tesk", "task"),
        ({"methods": {"ewc": {"task": {"strenght": 3}}}}, "strenght", "strength"),
        ({"methods": {"sgd": {"keeps": 3}}}, "keeps", None),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_right_one(
    preset: dict[str, Any], wrong: str, right: str | None
) -> None:
    with pytest.raises(InvalidSetting, match="preset 'mine'") as caught:
        read_preset("mine", preset)
    assert f"there is no '{wrong}'" in str(caught.value)
    assert (f"did you mean '{right}'" in str(caught.value)) == (right is not None)


@pytest.mark.parametrize(
    "preset", [{"shared": 3}, {"methods": ["ewc"]}, {"methods": {"ewc": 5}}, {"methods": {"ewc": {"task": "hard"}}}]
)
def test_what_should_be_a_mapping_must_be_one(preset: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="must be a mapping"):
        read_preset("mine", preset)


@pytest.mark.parametrize("preset", [{"net": 5}, {"augment": "maybe"}])
def test_a_preset_of_wrong_types_is_refused(preset: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="it must be"):
        read_preset("mine", preset)


def test_empty_parts_of_a_preset_say_nothing() -> None:
    preset = read_preset("mine", {"shared": None, "methods": {"sgd": None, "ewc": {"task": None, "strength": 3}}})
    assert preset.settings("ewc", "task") == {"strength": 3}
    assert preset.settings("sgd", "task") == {}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"method": "ewk"}, "did you mean 'ewc'"),
        ({"scenario": "domian"}, "did you mean 'domain'"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"seeds": (-1,)}, "none negative"),
        ({"seeds": (2**63,)}, "below"),
        ({"settings": {"rates": 1}}, "has no setting 'rates' (did you mean 'rate'?)"),
        ({"settings": {3: 1}}, "has no setting '3'"),
        ({"method": "sgd", "settings": {"keep": 0.9}}, "method 'sgd' has no setting 'keep'"),
        ({"method": "ewc", "settings": {"online": True}}, "has online False: leave it out, or choose oewc"),
        ({"method": "offline", "settings": {"heads": [[0, 1]]}}, "has heads (): leave it out"),
        ({"settings": {"rate": "fast"}}, "rate is 'fast'; it must be a number"),
        ({"settings": {"rate": None}}, "rate is None; it must be a number"),
        ({"settings": {"rate": True}}, "rate is True; it must be a number"),
        ({"settings": {"rate": [1]}}, "rate is (1,); it must be a number"),
        ({"settings": {"rate": -1}}, "rate is -1; it must be a positive number"),
        ({"settings": {"rate": float("nan")}}, "rate is nan; it must be a number"),
        ({"method": "ewc", "settings": {"strength": float("inf")}}, "strength is inf; it must be a number"),
        ({"method": "ewc", "settings": {"decay": None}}, "decay is None"),
        ({"settings": {"batch_size": 1.5}}, "batch_size is 1.5; it must be a whole number"),
        ({"settings": {"enforce": "yes"}}, "enforce"),
        ({"settings": {"milestones": 5}}, "milestones is 5; it must be a list of whole numbers"),
        ({"settings": {"milestones": ["a"]}}, "milestones is ('a',); it must be a list of whole numbers"),
        ({"settings": {"milestones": [-3]}}, "milestones is (-3,): epochs are counted from 1"),
        ({"method": "sgd", "settings": {"milestones": [5, 0]}}, "milestones is (5, 0): epochs are counted from 1"),
        ({"settings": {"seeds": 3}}, "has no setting 'seeds': it is an option of its own, --seeds"),
        ({"method": "exact", "settings": {"net": "x"}}, "it is an option of its own, --net"),
        ({"seeds": tuple(range(10_001))}, "seeds is 10001, and one run takes at most 10,000"),
        ({"settings": {"budgets": 1}}, "budgets is 1; it must be a list of numbers"),
        ({"settings": {"budgets": [1, "much"]}}, "budgets is (1, 'much'); it must be a list of numbers"),
        ({"settings": {"budgets": [-1]}}, "it must be a tuple of numbers (in YAML, a list), none of them negative"),
        ({"settings": {"held_out": 0.5}}, "held_out is 0.5; it is a share of the examples: at least 0, and below 0.5"),
        ({"settings": {"optimizer": "lbfgs"}}, "optimizer is 'lbfgs'"),
        ({"settings": {"keep": 1.5}}, "keep is 1.5"),
        ({"epochs": 0}, "epochs is 0"),
    ],
)
def test_what_makes_no_sense_is_named(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(words)):
        configure(**asked)


def test_a_preset_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'mnist'"):
        load_preset("mnits")


# What is asked for goes before the preset.


def test_settings_go_before_the_preset_and_the_rest_stays() -> None:
    config = configure("mnist", "domain", "ewc", settings={"strength": 5, "milestones": [2, 4]}, net="mlp-8", tasks=3)
    assert (config.settings["strength"], config.settings["rate"]) == (5, 0.001)
    assert config.settings["milestones"] == (2, 4)
    assert (config.net, config.tasks, config.augment) == ("mlp-8", 3, False)
    assert config.record()["settings"]["milestones"] == [2, 4]
    method = build_method(config)
    assert isinstance(method, EWC)
    assert method.strength == 5


def test_numbers_that_yaml_takes_for_words_are_numbers() -> None:
    values = read_yaml("{rate: 1e-4, radii_rate: 2.5E2}", "here")
    assert values == {"rate": "1e-4", "radii_rate": "2.5E2"}
    settings = configure(settings={**values, "budgets": ["1e-1", 2]}).settings
    assert (settings["rate"], settings["radii_rate"], settings["budgets"]) == (1e-4, 250.0, (0.1, 2))


@pytest.mark.parametrize(
    ("dataset", "net"), [("permuted-mnist", "mlp-400-400"), ("rotated-mnist", "mlp-400-400"), ("my/own.npz", "mlp-100")]
)
def test_other_data_takes_the_preset_of_data_like_it(dataset: str, net: str) -> None:
    assert configure(dataset).net == net


@pytest.mark.parametrize(("epochs", "centres", "radii"), [(30, 20, 10), (6, 4, 2), (2, 1, 1), (60, 40, 20)])
def test_epochs_are_shared_out_between_centres_and_radii(epochs: int, centres: int, radii: int) -> None:
    config = configure("digits", "task", "intercontinet", epochs=epochs)
    assert (config.settings["centre_epochs"], config.settings["radii_epochs"]) == (centres, radii)
    method = build_method(config)
    assert isinstance(method, Hyperrectangles)
    assert method.settings.centre_epochs == centres


def test_one_epoch_is_too_few_for_two_phases_and_enough_for_one() -> None:
    with pytest.raises(InvalidSetting, match="at least 2"):
        configure("digits", "task", "intercontinet", epochs=1)
    assert configure("cifar-10", "task", "sgd", epochs=1).settings["milestones"] == (1, 1)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_a_head_for_each_task_needs_to_know_the_task(scenario: str) -> None:
    with pytest.raises(InvalidSetting, match="one head for all tasks"):
        configure("digits", scenario, "intercontinet", settings={"head": "per-task"})


@pytest.mark.parametrize("method", ["sgd", "intercontinet"])
@pytest.mark.parametrize(("epochs", "milestones"), [(100, (50, 90)), (10, (5, 9)), (200, (100, 180)), (2, (1, 2))])
def test_milestones_move_with_the_epochs_and_never_before_the_first(
    method: str, epochs: int, milestones: tuple[int, ...]
) -> None:
    settings = configure("cifar-10", "task", method, epochs=epochs).settings
    assert settings["milestones"] == milestones
    if method == "sgd":
        assert settings["epochs"] == epochs


def test_no_example_stays_unseen_where_all_tasks_show_the_same_images() -> None:
    assert configure("permuted-mnist", "domain", "exact").settings["unseen"] == 0
    assert configure("mnist", "domain", "exact").settings["unseen"] > 0
    with pytest.raises(InvalidSetting, match="none stays unseen"):
        configure("rotated-mnist", "domain", "exact", settings={"unseen": 0.1})
    with pytest.raises(InvalidSetting, match=r"augment makes no sense .*: leave it out.* --set mirror=true"):
        configure("mnist", "domain", "exact", augment=True)


@pytest.mark.parametrize(
    ("scenario", "net", "settings", "words"),
    [
        ("task", "capped-levels-9-3", {}, "a head for each task nothing competes, .* use 'levels-9-3'"),
        ("class", "capped-levels-9-3", {"parts": 2}, "parts is 2, .* set parts=1, or use 'levels-9-3'"),
        ("class", "levels-9-3", {"mirror": True}, "set mirror=false, or use 'capped-levels-9-3'"),
        ("class", "levels-9-3", {"tuning": "shifted"}, "tuning is for outputs under a ceiling: use a capped net"),
        ("class", "levels-9-3", {"strangers_from": "mnist"}, "strangers_from is for outputs under a ceiling"),
        ("task", "levels-9-3", {"strangers_from": "mnist"}, "strangers_from is for outputs under a ceiling"),
    ],
)
def test_what_a_nets_columns_have_no_use_for_is_refused(
    scenario: str, net: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSetting, match=words):
        configure("digits", scenario, "exact", net=net, settings=settings)


@pytest.mark.parametrize(
    ("scenario", "net", "settings"),
    [
        ("task", "levels-9-3", {"mirror": True, "parts": 2}),
        ("task", "capped-levels-9-3", {"head": "shared", "mirror": True}),
        ("class", "capped-levels-9-3", {"mirror": True, "tuning": "shifted"}),
    ],
)
def test_what_they_have_use_for_is_not(scenario: str, net: str, settings: dict[str, Any]) -> None:
    found = configure("digits", scenario, "exact", net=net, settings=settings).settings
    assert {name: found[name] for name in settings} == settings


def test_importances_are_counted_on_augmented_images_only_where_there_are_any() -> None:
    with pytest.raises(InvalidSetting, match=r"augmented is for images .* add --augment"):
        configure("mnist", "domain", "ewc", settings={"augmented": True})
    for asked in (configure("cifar-10", "domain", "mas", settings={"augmented": True}),
                  configure("mnist", "domain", "ewc", settings={"augmented": True}, augment=True)):  # fmt: skip
        assert asked.augment and asked.settings["augmented"] is True


def test_milestones_that_were_asked_for_do_not_move_with_the_epochs() -> None:
    asked = configure("mnist", "domain", "sgd", settings={"milestones": [20, 40]}, epochs=60)
    assert (asked.settings["epochs"], asked.settings["milestones"]) == (60, (20, 40))
    preset = configure("cifar-10", "domain", "sgd", epochs=50)
    assert (preset.settings["epochs"], preset.settings["milestones"]) == (50, (25, 45))
