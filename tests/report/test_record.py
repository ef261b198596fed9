"""The reader of records: what is whole is read as it is, what is wrong is named with its file and place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intercontinet.errors import InvalidData
from intercontinet.report.record import CellKey, Hardware, Room, parse_record, read_record
from tests.report.records import PAIRS, Record, record

Damage = Callable[[Record], object]
NOTHING_MORE = {"unseen_certified": None, "unseen_total": None, "unseen_floor": None, "drift": None, "argued": None}


def read(content: Record, incomplete: bool = False) -> Any:
    return parse_record(json.dumps(content), "odd.json", incomplete)


# Reading.


def test_a_record_is_read_whole(tmp_path: Path) -> None:
    content = record(variant="keep-0.9", net="mlp-5 ü")
    (tmp_path / "summary.json").write_text(json.dumps(content))
    found = read_record(tmp_path / "summary.json")
    assert found.source == str(tmp_path / "summary.json")
    assert found.key == CellKey("mnist", "task", "intercontinet", "keep-0.9")
    assert (found.complete, found.keep, found.net, found.tasks) == (True, 0.9, "mlp-5 ü", tuple(PAIRS))
    assert (found.test_examples, found.seconds, found.lessons) == ((100,) * 5, 75.2, 5)
    assert (found.settings, found.versions) == (content["settings"], content["versions"])
    assert found.started.isoformat() == content["started"]
    assert found.hardware == Hardware(**content["hardware"])
    for seed, stored in zip(found.seeds, content["seeds"], strict=True):
        assert [list(row) for row in seed.accuracy_matrix] == stored["accuracy_matrix"]
        assert [vars(floor) for floor in seed.floors] == [{**NOTHING_MORE, **floor} for floor in stored["floors"]]
        assert seed.region == tuple(
            Room(size["sum_of_radii"], size["log_volume"], size["dead"]) for size in stored["region"]
        )
        assert seed.curve == ()
        for name in ("seed", "seconds", "average_accuracy", "forgetting", "backward_transfer", "forward_transfer"):
            assert getattr(seed, name) == stored[name]
        for name in ("initial_accuracy", "negative_flips"):
            assert list(getattr(seed, name)) == stored[name]


def test_names_are_those_that_people_use() -> None:
    key = read(record("oewc", dataset="/data/My images")).key
    assert (str(key), key.method_name, key.scenario_name) == ("task/oewc", "oEWC", "task-incremental")
    assert CellKey("mnist", "task", "new").method_name == "new"


def test_offline_learns_one_thing() -> None:
    found = read(record("offline"))
    assert found.lessons == len(found.seeds[0].accuracy_matrix) == 1
    assert len(found.seeds[0].floors) == 5 and found.seeds[0].forgetting is None


def test_a_curve_is_read() -> None:
    content = record()
    point = {"task": 1, "phase": "radii", "epoch": 3, "current": 0.9, "first": 0.8, "sum_of_radii": None}
    content["seeds"][0]["curve"] = [point]
    assert vars(read(content).seeds[0].curve[0]) == point


def test_floors_for_unseen_data_are_read() -> None:
    content = record()
    some = {"unseen_certified": 900, "unseen_total": 1000, "unseen_floor": 0.8829}
    content["seeds"][0]["floors"][1] |= some
    content["seeds"][0]["floors"][2] |= {name: None for name in NOTHING_MORE if name != "argued"}
    content["seeds"][0]["floors"][3] |= {"unseen_certified": 0, "unseen_total": 1900, "unseen_floor": 0.0}
    _, known, none, before, *_ = read(content).seeds[0].floors
    assert (known.unseen_certified, known.unseen_total, known.unseen_floor) == (900, 1000, 0.8829)
    assert none.unseen_floor is None
    assert before.certified > before.total - 1900, "counted before the region was drawn in for their sake"


def test_a_run_that_did_not_finish_is_read_only_when_asked() -> None:
    content = record(complete=False)
    for name in ("accuracy_matrix", "floors", "negative_flips", "region"):
        del content["seeds"][0][name][2:]
    with pytest.raises(InvalidData, match=r"odd\.json is of a run that did not finish: finish it"):
        read(content)
    found = read(content, incomplete=True)
    assert not found.complete and [len(seed.accuracy_matrix) for seed in found.seeds] == [2, 5]
    assert read(record(complete=False, seeds=()), incomplete=True).seeds == ()


# Refusing.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged: not whole JSON"),
        (b'{"format": "intercontinet run", "ver', "is damaged: not whole JSON"),
        (b"\xff\xfe\x00", "is damaged: not whole JSON"),
        (b"[" * 100_000, "is damaged: not whole JSON"),
        (b'{"seconds": NaN}', "is damaged: not whole JSON: it holds NaN"),
        (b"[]", "is foreign: not a JSON object.*Move it elsewhere"),
        (b"{}", "is not a record of a run: its .*Move it elsewhere"),
        (b'{"format": "something else", "version": 1}', "is not a record of a run: its"),
        (b'{"format": "intercontinet run"}', "version is missing and should be a whole number"),
        (b'{"format": "intercontinet run", "version": "1"}', "version is '1' and should be a whole number"),
        (
            b'{"format": "intercontinet run", "version": 2}',
            "format version 2, and this package reads version 1: pip install --upgrade intercontinet",
        ),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    for incomplete in (False, True):
        with pytest.raises(InvalidData, match=rf"odd\.json .*{words}"):
            read_record(tmp_path / "odd.json", incomplete)


@pytest.mark.parametrize("folder", [True, False])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, folder: bool) -> None:
    if folder:
        (tmp_path / "odd.json").mkdir()
    with pytest.raises(InvalidData, match=r"cannot read .*odd\.json: .*Check that it is there"):
        read_record(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"complete": 1}, "complete is 1 and should be true or false"),
        ({"dataset": None}, "dataset is None and should be text"),
        ({"scenario": "open"}, "there is no scenario 'open'"),
        ({"method": "../../ewc"}, "'../../ewc' is no name"),
        ({"variant": "a b"}, "'a b' is no name"),
        ({"variant": 3}, "variant is 3 and should be text"),
        ({"keep": "much"}, "keep is 'much' and should be a number from 0 to 1"),
        ({"keep": 1.5}, "keep is 1.5 and should be a number from 0 to 1"),
        ({"tasks": "0/1"}, "tasks is '0/1' and should be a list"),
        ({"tasks": ["0/1", 2]}, r"tasks\.1 is 2 and should be text"),
        ({"tasks": PAIRS[::-1]}, r"seeds\.0: floors are not one for each task learned, in order"),
        ({"tasks": []}, "at least one task"),
        ({"test_examples": [100]}, "at least one task, and test_examples of each"),
        ({"test_examples": [100, 100, 0, 100, 100]}, "at least one task, and test_examples of each"),
        ({"test_examples": [-1]}, r"test_examples\.0 is -1 and should be a whole number"),
        ({"seeds": [3]}, r"seeds\.0 is 3 and should be an object"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": record()["seeds"] * 2}, "every seed once"),
        ({"started": "yesterday"}, "started is 'yesterday' and should be a time"),
        ({"started": "2026-11-16T10:00:00"}, "should be a time with its zone"),
        ({"versions": {"torch": 2}}, r"versions\.torch is 2 and should be text"),
        ({"hardware": {"device": "cpu"}}, r"hardware\.\w+ is missing and should be"),
        ({"settings": []}, r"settings is \[\] and should be an object"),
        ({"seconds": True}, "seconds is True and should be a number"),
        ({"seconds": -1}, "seconds is -1 and should be a number"),
        ({"seconds": 10**400}, "seconds is 1000.* and should be a number"),
    ],
)
def test_a_wrong_field_is_named(changes: Record, words: str) -> None:
    with pytest.raises(InvalidData, match=rf"odd\.json is damaged: .*{words}.*fresh copy"):
        read({**record(), **changes})


def _in_seed(**changes: Any) -> Damage:
    return lambda content: content["seeds"][1].update(changes)


def _in_floor(**changes: Any) -> Damage:
    return lambda content: content["seeds"][1]["floors"][0].update(changes)


def _unseen(certified: object, total: object, floor: object) -> Damage:
    return _in_floor(unseen_certified=certified, unseen_total=total, unseen_floor=floor)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_in_seed(seed=True), r"\.seed is True and should be a whole number"),
        (_in_seed(seed=-1), r"\.seed is -1 and should be a whole number"),
        (_in_seed(accuracy_matrix=[[0.9] * 4] * 5), ": there are 4 accuracies for 5 tasks"),
        (_in_seed(accuracy_matrix=[[0.9] * 5] * 6), ": accuracy_matrix has 6 rows, where 5 would be complete"),
        (_in_seed(accuracy_matrix=[[0.9] * 5] * 4), ": accuracy_matrix has 4 rows, where 5 would be complete"),
        (_in_seed(accuracy_matrix=[[0.9] * 5]), ": accuracy_matrix has 1 rows, where 5 would be complete"),
        (
            _in_seed(accuracy_matrix=[[0.9] * 4 + [1.1]] * 5),
            r"\.accuracy_matrix\.0\.4 is 1.1 and should be a number from 0 to 1",
        ),
        (_in_seed(initial_accuracy=[0.5]), ": there are 1 accuracies for 5 tasks"),
        (_in_seed(negative_flips=[0.0] * 6), ": negative_flips or region are not 5"),
        (
            _in_seed(region=[{"sum_of_radii": 1.0, "log_volume": -1.0, "dead": 0.0}]),
            ": negative_flips or region are not 5",
        ),
        (_in_seed(region=None), r"\.region is None and should be a list"),
        (
            _in_seed(region=[{"sum_of_radii": 1.0, "log_volume": -1.0, "dead": 2}]),
            r"\.region\.0\.dead is 2 and should be",
        ),
        (_in_seed(average_accuracy="high"), r"\.average_accuracy is 'high' and should be a number"),
        (_in_seed(average_accuracy=None), ": average_accuracy is None with 5 rows"),
        (_in_seed(curve="up"), r"\.curve is 'up' and should be a list"),
        (
            _in_seed(curve=[{"task": 5, "phase": "", "epoch": 1, "current": 1, "first": 1, "sum_of_radii": 0}]),
            ": a point of the curve is of task 5, of 5 counted from 0",
        ),
        (lambda content: content["seeds"][1].pop("forward_transfer"), r"\.forward_transfer is missing"),
        (lambda content: content["seeds"][1]["floors"].pop(), ": floors are not one for each task learned"),
        (_in_floor(task="2/3"), ": floors are not one for each task learned"),
        (_in_floor(certified=12001), r"\.floors\.0: 12001 of 12000 examples cannot be certified"),
        (_in_floor(certified=0, total=0), r"\.floors\.0: 0 of 0 examples cannot be certified"),
        (_in_floor(certified=0.5), r"\.floors\.0\.certified is 0.5 and should be a whole number"),
        (_in_floor(kept="yes"), r"\.floors\.0\.kept is 'yes' and should be true or false"),
        (_in_floor(unseen_total=9), r"\.floors\.0\.unseen_certified is missing and should be a whole number"),
        (_in_floor(unseen_floor=0.5), r"\.floors\.0\.unseen_certified is missing and should be a whole number"),
        (_unseen(9, None, 0.5), r"\.floors\.0\.unseen_total is None and should be a whole number"),
        (_unseen(-1, 9, 0.5), r"\.floors\.0\.unseen_certified is -1 and should be a whole number"),
        (_unseen(9, 9, None), r"\.floors\.0\.unseen_floor is None and should be a number from 0 to 1"),
        (_unseen(9, 9, 1.5), r"\.floors\.0\.unseen_floor is 1.5 and should be a number from 0 to 1"),
        (_unseen(9, 8, 0.5), r"\.floors\.0: 9 of 8 unseen examples cannot be certified, with 11000 of all 12000"),
        (_unseen(9, 12001, 0.0), r"\.floors\.0: 9 of 12001 unseen examples cannot be certified"),
        (_unseen(11001, 11002, 0.0), r"\.floors\.0: 11001 of 11002 unseen examples cannot be certified"),
        (_unseen(5, 10, 0.51), r"\.floors\.0: unseen_floor is 0.51, with 5 of 10 unseen examples certified"),
        (_in_floor(kept=None), ": 0.9 was to be kept, but a floor does not say whether it was"),
    ],
)
def test_a_damaged_seed_is_named(damage: Damage, words: str) -> None:
    content = record()
    damage(content)
    with pytest.raises(InvalidData, match=rf"odd\.json is damaged: seeds\.1{words}.*fresh copy"):
        read(content)


def test_every_field_is_needed() -> None:
    unread = {"log_volume", "mean_radius", "train_accuracy"}
    for path in ((), ("hardware",), ("seeds", 0), ("seeds", 0, "floors", 0), ("seeds", 0, "region", 0)):
        names = set(_inside(record(), path)) - unread
        for name in names:
            content = record()
            del _inside(content, path)[name]
            with pytest.raises(InvalidData, match=r"odd\.json"):
                read(content)


def _inside(content: Any, path: tuple[str | int, ...]) -> Record:
    for step in path:
        content = content[step]
    found: Record = content
    return found
