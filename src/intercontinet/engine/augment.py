"""Random flips and crops of a stack of images, decided by keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.noise import uniform

PADDING = 4


def flipped_and_cropped(x: Tensor, keys: Tensor) -> Tensor:
    """Mirror half of the images, and shift each by up to four pixels each way over a black border.

    Args:
        x: [seeds, batch, channels, height, width].
        keys: [seeds].

    Returns:
        Of the same shape.
    """
    seeds, batch, _, height, width = x.shape
    draws = uniform(keys, 3 * batch).view(seeds, batch, 3)
    shifts = (draws[..., 1:] * (2 * PADDING + 1)).long()
    rows = torch.arange(height, device=x.device) + shifts[..., :1]
    columns = torch.arange(width, device=x.device).expand(seeds, batch, width)
    columns = torch.where(draws[..., :1] < 0.5, columns.flip(-1), columns) + shifts[..., 1:]
    padded = F.pad(x, (PADDING,) * 4)
    chosen = padded.gather(3, rows[:, :, None, :, None].expand(-1, -1, x.shape[2], -1, padded.shape[-1]))
    return chosen.gather(4, columns[:, :, None, None, :].expand(-1, -1, x.shape[2], height, -1))
