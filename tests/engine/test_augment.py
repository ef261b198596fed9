"""Flips and crops against every image that they may lead to."""

from __future__ import annotations

import torch
from torch import Tensor

from intercontinet.engine.augment import PADDING, flipped_and_cropped
from intercontinet.noise import key_of

REACH = range(2 * PADDING + 1)


def images(seeds: int, batch: int, channels: int = 2, height: int = 5, width: int = 6) -> Tensor:
    """Positive everywhere, so that only the border is black."""
    generator = torch.Generator().manual_seed(0)
    return 1 + torch.rand(seeds, batch, channels, height, width, generator=generator)


def choices(image: Tensor) -> dict[tuple[bool, int, int], Tensor]:
    """[channels, height, width] -> every outcome, built pixel by pixel, by (mirrored, rows up, columns to the left)."""
    channels, height, width = image.shape
    found = {}
    for mirrored in (False, True):
        seen = image.flip(-1) if mirrored else image
        for down in REACH:
            for along in REACH:
                out = torch.zeros(channels, height, width)
                for row in range(height):
                    for column in range(width):
                        i, j = row + down - PADDING, column + along - PADDING
                        if 0 <= i < height and 0 <= j < width:
                            out[:, row, column] = seen[:, i, j]
                found[mirrored, down - PADDING, along - PADDING] = out
    return found


def test_the_padding_is_four() -> None:
    assert PADDING == 4


def test_every_image_is_itself_mirrored_or_not_and_shifted_over_black() -> None:
    x = images(2, 10)
    before = x.clone()
    out = flipped_and_cropped(x, torch.tensor([key_of(0), key_of(1)]))
    assert out.shape == x.shape and torch.equal(x, before)
    for seed in range(2):
        for image, changed in zip(x[seed], out[seed], strict=True):
            fitting = [way for way, outcome in choices(image).items() if torch.equal(outcome, changed)]
            assert len(fitting) == 1


def test_half_are_mirrored_and_every_shift_occurs_as_often() -> None:
    """An image whose pixels all differ, many times: 600 images, 300 mirrored, 67 a row or column of shifts."""
    x = images(1, 1, channels=1, height=9, width=9)
    outcomes = {outcome.numpy().tobytes(): way for way, outcome in choices(x[0, 0]).items()}
    many = flipped_and_cropped(x.expand(1, 600, -1, -1, -1), torch.tensor([key_of(3)]))[0]
    ways = [outcomes[image.contiguous().numpy().tobytes()] for image in many]
    assert 250 < sum(mirrored for mirrored, _, _ in ways) < 350
    for axis in (1, 2):
        counts = [sum(way[axis] == shift - PADDING for way in ways) for shift in REACH]
        assert min(counts) > 30 and max(counts) < 110
    for side in (False, True):
        own = [(down > 0) == (along > 0) for mirrored, down, along in ways if mirrored is side]
        assert 0.4 < sum(own) / len(own) < 0.6, "rows and columns shift independently"


def test_a_seed_sees_the_same_images_alone_or_beside_others() -> None:
    x = images(3, 8)
    keys = torch.tensor([key_of(seed) for seed in range(3)])
    together = flipped_and_cropped(x, keys)
    for seed in range(3):
        assert torch.equal(together[seed], flipped_and_cropped(x[seed : seed + 1], keys[seed : seed + 1])[0])
    same = flipped_and_cropped(x[:1].expand(3, -1, -1, -1, -1), keys)
    assert not torch.equal(same[0], same[1]) and not torch.equal(same[1], same[2])
