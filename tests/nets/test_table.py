"""Nets for the exact learner: by name, and put together from an encoder and a table."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.learners.exact import EXACT, encoded, parts_of
from intercontinet.nets import (
    Ferns,
    KWinners,
    PatchDictionary,
    TriangleDictionary,
    build_exact_net,
    fern_net,
    with_table,
)
from tests.tiny import same

IMAGES = torch.rand(40, 2, 9, 8, generator=torch.Generator().manual_seed(0))
NAMED: dict[
    str, tuple[list[type[nn.Module]], int, int]
] = {  # what a name builds: layers below the table, rows of the table, rows chosen
    "ferns-5-3-4": ([Ferns], 5 * 8, 5),
    "pairs-6-2-4": ([Ferns], 6 * 4, 6),
    "levels-7-3": ([nn.Flatten, Ferns], 7 * 8, 7),
    "winners-30-4": ([KWinners], 30, 4),
    "dictionary-4-2-50-3-6-3": ([PatchDictionary, Ferns], 6 * 8, 6),
    "triangle-4-2-3-6-3": ([TriangleDictionary, Ferns], 6 * 8, 6),
}


def built(name: str, seed: int = 0, slots: int = 1, images: Tensor = IMAGES) -> nn.Sequential:
    return build_exact_net(name, images, outputs=3, slots=slots, seed=seed)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries fitted to few patches."""
    for kind in (PatchDictionary, TriangleDictionary):
        monkeypatch.setattr(kind, "fitted", partial(kind.fitted, patches=500))


def encoder_of(net: nn.Module) -> dict[str, Tensor]:
    """Everything that the encoder is made of."""
    return dict(parts_of(net)[0].named_buffers())


# Names.


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("slots", [1, 3])
def test_every_name_builds_what_it_says(name: str, slots: int) -> None:
    net = built(name, slots=slots)
    layers, rows, chosen = NAMED[name]
    kinds: list[type[nn.Module]] = [*layers, nn.EmbeddingBag, *([nn.MaxPool1d] if slots > 1 else [])]
    assert [type(layer) for layer in net] == kinds
    encoder, table, weight = parts_of(net)
    assert all(isinstance(layer, EXACT) for layer in encoder)
    assert (table.bag.num_embeddings, table.columns, table.slots) == (rows, 3 * slots, slots)
    assert weight == f"{len(layers)}.weight"
    numbers, sure = encoded(encoder, IMAGES)
    assert numbers.shape == (40, chosen) and bool(sure.all())
    assert int(numbers.min()) >= 0 and int(numbers.max()) < rows and len(torch.unique(numbers)) > chosen
    assert net(IMAGES).tolist() == [[0.0] * 3] * 40, "all weights start at zero"


def test_sizes_of_a_name_arrive_where_they_belong() -> None:
    ferns, pairs = cast(Ferns, built("ferns-5-3-4")[0]), cast(Ferns, built("pairs-6-2-4")[0])
    assert (tuple(ferns.first.shape), ferns.kind, ferns.shape) == ((5, 3), "threshold", (2, 9, 8))
    assert (tuple(pairs.first.shape), pairs.kind) == ((6, 2), "pair")
    inside = built("ferns-50-5-1")[0]
    places = cast(Ferns, inside).first % 72
    assert bool((places == places[:, :1]).all()), "in a window of one pixel there is one place"
    winners = cast(KWinners, built("winners-30-4")[0])
    assert (winners.bins, winners.winners) == (30, 4)
    dictionary = cast(PatchDictionary, built("dictionary-4-2-50-3-6-3")[0])
    asked: dict[str, Any] = {"pool": 2, "active": 0.5, "spread": 3.0}
    expected = PatchDictionary.fitted(IMAGES, 4, seed=0, **asked)
    assert same(dict(dictionary.named_buffers()), dict(expected.named_buffers()))
    for other in ("dictionary-4-1-50-3-6-3", "dictionary-4-2-20-3-6-3", "dictionary-4-2-50-9-6-3"):
        found = dict(built(other)[0].named_buffers()), built(other)[0](IMAGES)
        assert found[1].shape != dictionary(IMAGES).shape or not torch.equal(found[1], dictionary(IMAGES)), other


@pytest.mark.parametrize("name", NAMED)
def test_a_seed_fixes_the_encoder_and_another_changes_it(name: str) -> None:
    assert same(encoder_of(built(name, 1)), encoder_of(built(name, 1)))
    assert not same(encoder_of(built(name, 1)), encoder_of(built(name, 2)))


@pytest.mark.parametrize("name", NAMED)
def test_only_levels_and_dictionaries_are_fitted_to_the_images(name: str) -> None:
    fitted = name.startswith(("levels", "dictionary", "triangle"))
    assert same(encoder_of(built(name)), encoder_of(built(name, images=IMAGES.flip(0).sqrt()))) != fitted


@pytest.mark.parametrize("name", ["levels-7-3", "winners-30-4"])
def test_examples_that_are_no_images_have_encoders_too(name: str) -> None:
    flat = IMAGES.flatten(1)
    assert built(name, images=flat)(flat).shape == (40, 3)


@pytest.mark.parametrize("name", ["ferns-5-3-4", "pairs-6-2-4", "dictionary-4-2-50-3-6-3"])
def test_encoders_of_images_refuse_anything_else_with_a_way_out(name: str) -> None:
    with pytest.raises(InvalidData, match=rf"'{name}' is for images.*\(144,\).*levels-GROUPS-TESTS"):
        built(name, images=IMAGES.flatten(1))


@pytest.mark.parametrize(
    "name",
    [
        "", "mlp-8", "alexnet", "ferns", "ferns-5-3", "ferns-5-3-4-1", "ferns-5-0-4", "ferns-5--3-4", "fern-5-3-4",
        "levels-a-3", "levels-²-3", "levels-7", "winners-30", "winners-30.5-4", "levels-7.5-3", "winners-30-4-1",
        "dictionary-4-2-50-3-6", "dictionary-4-2-0-3-6-3", "dictionary-4.5-2-50-3-6-3", "Ferns-5-3-4", "ferns-5-3-4 ",
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_named_with_those_that_are(name: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(f"there is no net '{name}' for method 'exact'")) as caught:
        built(name)
    for kind in ("ferns", "pairs", "dictionary", "levels", "winners"):
        assert f"{kind}-" in str(caught.value)


def test_more_winners_than_units_and_too_wide_a_window_are_named() -> None:
    with pytest.raises(InvalidSetting, match="winners is 4"):
        built("winners-3-4")
    with pytest.raises(InvalidSetting, match="window of 1 to 8 pixels, not 9"):
        built("ferns-5-3-9")


# Put together.


class Two(nn.Module):
    """Chooses rows 0 and 2 of every example."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[0, 2]]).expand(len(x), 2)


def test_a_table_sums_the_chosen_rows_and_takes_the_largest_column_of_each_output() -> None:
    net = with_table(Two(), rows=3, outputs=2, slots=2)
    table = parts_of(net)[1]
    with torch.no_grad():
        table.bag.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0], [90.0] * 4, [10.0, 5.0, -3.0, -2.0]]))
    assert net(torch.zeros(2, 1)).tolist() == [[11.0, 2.0]] * 2
    assert [name for name, _ in net.named_parameters()] == ["1.weight"]


def test_one_column_an_output_needs_no_maximum_and_a_sequential_is_taken_apart() -> None:
    parts = [nn.Flatten(), KWinners(6, units=8, winners=2)]
    net = with_table(nn.Sequential(*parts), 8, outputs=3)
    assert [type(layer) for layer in net] == [nn.Flatten, KWinners, nn.EmbeddingBag]
    assert net[0] is parts[0] and net[1] is parts[1], "side by side with the table"
    assert net(torch.rand(5, 2, 3)).shape == (5, 3)


def test_fern_nets_have_the_columns_they_are_asked_for() -> None:
    net = fern_net((1, 8, 8), outputs=4, groups=5, tests=2, window=3, kind="pair", seed=2, slots=3)
    assert cast(nn.EmbeddingBag, net[1]).weight.shape == (20, 12)
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    assert same(dict(net[0].named_buffers()), dict(Ferns((1, 8, 8), 5, 2, 3, "pair", seed=2).named_buffers()))
