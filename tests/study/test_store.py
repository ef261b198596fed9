"""The results store: what is written is read back, what is wrong is named, what belongs together is pooled."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from intercontinet.errors import InvalidData, WriteError
from intercontinet.report.record import CellKey
from intercontinet.study.store import cells, load_records, place_for, record_name, save_record
from tests.study.records import finals, parsed, record, seed_record, write

# Writing and reading.


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    content = record(method="intercontinet", variant="keep-0.9", net="mlp-5-5 ü")
    path = save_record(tmp_path / "table1", content)
    assert json.loads(path.read_text(encoding="utf-8")) == content
    (found,) = load_records(tmp_path / "table1")
    assert found.source == str(path)
    assert found.key == CellKey("mnist", "task", "intercontinet", "keep-0.9")
    assert (found.keep, found.net, found.tasks) == (0.9, "mlp-5-5 ü", ("0/1", "2/3"))
    assert found.started.isoformat() == content["started"]
    assert found.hardware.memory_gib == 16.0
    first = found.seeds[0]
    assert [list(row) for row in first.accuracy_matrix] == content["seeds"][0]["accuracy_matrix"]
    assert [(floor.certified, floor.total, floor.kept) for floor in first.floors] == [(90, 100, True), (80, 100, True)]
    assert first.curve == ()


def test_a_file_has_a_line_for_each_field_and_seed(tmp_path: Path) -> None:
    content = record(seeds=finals(0.9, 0.8, 0.7))
    lines = save_record(tmp_path, content).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(content) - 1 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"scenario": "class"}, "class-ewc-seeds-0-1.json"),
        ({"method": "intercontinet", "variant": "keep-0.95"}, "task-intercontinet-keep-0.95-seeds-0-1.json"),
        ({"seeds": [seed_record(7), seed_record(3)]}, "task-ewc-seeds-3-7.json"),
        ({"tasks": ("0/1", "2/3")}, "task-ewc-seeds-0-1.json"),
    ],
)
def test_files_are_named_after_scenario_method_variant_and_seeds(changes: dict[str, Any], name: str) -> None:
    assert record_name(record(**changes)) == name


def test_where_a_record_belongs_is_known_before_there_is_one(tmp_path: Path) -> None:
    key = CellKey("mnist", "task", "ewc")
    path = place_for(tmp_path, key, (0, 1))
    assert path == save_record(tmp_path, record())
    assert place_for(tmp_path, key, (1, 0)) == path, "the same again"
    assert place_for(tmp_path, key, (0, 1), several=True).name == "mnist-task-ewc-seeds-0-1.json"
    for other, seeds, lost in (
        (CellKey("digits", "task", "ewc"), (0, 1), "task/ewc on mnist"),
        (key, (0, 1), "seeds \\[5\\]"),
    ):
        if other == key:
            write(path, record(seeds=[seed_record(seed) for seed in (0, 5)]))
        with pytest.raises(InvalidData, match=f"holds {lost}, which saving this record would lose: move that file"):
            place_for(tmp_path, other, seeds)


def test_offline_has_one_row_and_no_forgetting(tmp_path: Path) -> None:
    (found,) = parsed(tmp_path, record(method="offline"))
    assert len(found.seeds[0].accuracy_matrix) == 1
    assert found.seeds[0].forgetting is None


def test_other_files_are_no_records_and_no_folder_has_none(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("Notes.")
    assert load_records(tmp_path) == load_records(tmp_path / "nowhere") == []


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidData, match=r"cannot read the folder .*file: Not a directory\. .* --out"):
        load_records(tmp_path / "file")

    def forbidden(folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", forbidden)  # root, who may run tests, is let in everywhere
    with pytest.raises(InvalidData, match=r"cannot read the folder .*: Permission denied\. Make it readable"):
        load_records(tmp_path)


def test_the_same_run_again_replaces_its_file(tmp_path: Path) -> None:
    save_record(tmp_path, record(seeds=finals(0.5, 0.5)))
    save_record(tmp_path, record(seeds=finals(0.9, 0.9)))
    (found,) = load_records(tmp_path)
    assert found.seeds[0].average_accuracy == pytest.approx(0.9)


def test_seeds_are_not_lost_to_a_file_of_the_same_name(tmp_path: Path) -> None:
    path = save_record(tmp_path, record(seeds=[seed_record(0), seed_record(1), seed_record(2)]))
    before = path.read_bytes()
    with pytest.raises(InvalidData, match=r"task-ewc-seeds-0-2.json holds seeds \[1\].*move that file away"):
        save_record(tmp_path, record(seeds=[seed_record(0), seed_record(2)]))
    assert path.read_bytes() == before


def test_a_cell_is_not_lost_to_another_of_the_same_file_name(tmp_path: Path) -> None:
    save_record(tmp_path, record(method="intercontinet-published"))
    with pytest.raises(InvalidData, match=r"holds task/intercontinet-published on mnist, which saving"):
        save_record(tmp_path, record(method="intercontinet", variant="published"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file/table1"):
        save_record(tmp_path / "file" / "table1", record())


# Refusing.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "something else"}, "not a record of a run"),
        ({"complete": False}, "did not finish"),
        ({"method": "../../ewc"}, "is no name"),
        ({"seeds": []}, "at least one seed"),
    ],
)
def test_what_is_no_complete_record_is_neither_saved_nor_loaded(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    write(tmp_path / "odd.json", record(**changes))
    with pytest.raises(InvalidData, match=rf"odd\.json .*{words}"):
        load_records(tmp_path)
    with pytest.raises(InvalidData, match=f"the record .*{words}"):
        save_record(tmp_path / "store", record(**changes))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("average_accuracy", 0.99, "average_accuracy of seed 0 is 0.99, but its accuracies give 0.9"),
        ("forgetting", None, "forgetting of seed 0 is None, but"),
        ("backward_transfer", 0.5, "backward_transfer of seed 0 is 0.5, but"),
        ("forward_transfer", 0.5, "forward_transfer of seed 0 is 0.5, but"),
    ],
)
def test_means_that_are_not_those_of_the_accuracies_are_named(
    tmp_path: Path, name: str, value: float | None, words: str
) -> None:
    content = record()
    content["seeds"][0][name] = value
    write(tmp_path / "odd.json", content)
    with pytest.raises(InvalidData, match=rf"odd\.json is damaged: {words}.*run again"):
        load_records(tmp_path)
    with pytest.raises(InvalidData, match=words):
        save_record(tmp_path / "store", content)


@pytest.mark.parametrize("odd", [float("nan"), {1, 2}])
def test_what_json_cannot_hold_is_not_written(tmp_path: Path, odd: object) -> None:
    with pytest.raises(InvalidData, match="cannot be written as JSON"):
        save_record(tmp_path, record(settings={"rate": odd}))
    assert not list(tmp_path.iterdir())


# Pooling.


def test_files_of_a_cell_are_pooled_with_the_sample_deviation(tmp_path: Path) -> None:
    more = [seed_record(2, 0.8), seed_record(3, 0.6)]
    records = parsed(tmp_path, record(seeds=finals(0.9, 0.9)), record(seeds=more), record(method="sgd"))
    pooled = cells(records)
    assert [str(key) for key in pooled] == ["task/ewc", "task/sgd"]
    cell = pooled[CellKey("mnist", "task", "ewc")]
    assert [seed.seed for seed in cell.seeds] == [0, 1, 2, 3]
    assert len(cell.records) == 2
    assert cell.mean == pytest.approx(0.8)
    assert cell.std == pytest.approx(((0.01 + 0.01 + 0 + 0.04) / 3) ** 0.5)


def test_tasks_count_by_their_test_examples(tmp_path: Path) -> None:
    seed = seed_record(rows=1)
    seed |= {"accuracy_matrix": [[1.0, 0.5]], "average_accuracy": 0.75}
    (cell,) = cells(parsed(tmp_path, record([seed], method="offline", test_examples=[300, 100]))).values()
    assert cell.mean == pytest.approx(0.875)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    (cell,) = cells(parsed(tmp_path, record(seeds=finals(0.9)))).values()
    assert cell.mean == pytest.approx(0.9) and cell.std is None


def test_variants_scenarios_and_data_sets_are_cells_of_their_own(tmp_path: Path) -> None:
    records = parsed(tmp_path, record(), record(variant="slow"), record(scenario="class"))
    records += parsed(tmp_path / "other", record(dataset="cifar-10"))
    assert len(cells(records)) == 4


def test_certified_shares_are_means_over_seeds(tmp_path: Path) -> None:
    seeds = [seed_record(0, certified=(90, 80)), seed_record(1, certified=(70, 20), kept=(True, False))]
    (cell,) = cells(parsed(tmp_path, record(method="intercontinet-published", seeds=seeds))).values()
    assert cell.certified == pytest.approx((0.8, 0.5))
    assert cell.kept == (True, False)


def test_methods_without_a_promise_certify_nothing_rather_than_zero(tmp_path: Path) -> None:
    (cell,) = cells(parsed(tmp_path, record())).values()
    assert cell.certified is None


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_a_seed_that_was_run_twice_the_newest_counts(tmp_path: Path, newest_first: bool) -> None:
    old = record(seeds=finals(0.5, 0.5), started="2026-11-16T12:30:00+02:00")
    new = record(seeds=finals(0.9), started="2026-11-16T11:00:00+00:00")  # later, though its clock shows less
    records = parsed(tmp_path, *([new, old] if newest_first else [old, new]))
    (cell,) = cells(records).values()
    assert [seed.average_accuracy for seed in cell.seeds] == pytest.approx([0.9, 0.5])


def test_a_record_that_no_seed_is_taken_from_is_left_out(tmp_path: Path) -> None:
    old = record(seeds=finals(0.5))
    new = record(seeds=finals(0.9, 0.9), started="2026-11-17T10:00:00+00:00")
    (cell,) = cells(parsed(tmp_path, old, new)).values()
    assert [Path(found.source).name for found in cell.records] == ["task-ewc-seeds-0-1.json"]


@pytest.mark.parametrize(("value", "alike"), [(0.1, True), (0.5, False)])
def test_a_setting_younger_than_a_record_had_its_default(tmp_path: Path, value: float, alike: bool) -> None:
    settings = {"keep": 0.9}
    others = [seed_record(5, certified=(90, 80))]
    older = record(method="exact", settings=settings)
    younger = record(method="exact", settings={**settings, "held_out": value}, seeds=others)
    records = parsed(tmp_path, older, younger)
    if alike:
        assert len(next(iter(cells(records).values())).seeds) == 3
    else:
        with pytest.raises(InvalidData, match="differ in settings"):
            cells(records)


@pytest.mark.parametrize("seed", [0, 5], ids=["the same seed", "another seed"])
@pytest.mark.parametrize(
    "changes",
    [{"settings": {"epochs": 3}}, {"keep": 0.5}, {"net": "alexnet"}, {"test_examples": [100, 50]}],
    ids=lambda changes: next(iter(changes)),
)
def test_different_settings_are_never_pooled(tmp_path: Path, changes: dict[str, Any], seed: int) -> None:
    other = [seed_record(seed, certified=(90, 80))]
    method = "intercontinet"
    records = parsed(tmp_path, record(method=method), record(method=method, seeds=other, **changes))
    with pytest.raises(
        InvalidData, match=rf"seeds-0-1.json and .* differ in {next(iter(changes))}: delete one, or give"
    ):
        cells(records)
