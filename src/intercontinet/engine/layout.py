"""One long vector for all parameters of a model: elementwise work is then one operation, for one seed or for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the vector.

    Attributes:
        shapes: Shape of each parameter, by name, in order.

    >>> layout = Layout.of({"w": torch.ones(2, 1), "b": torch.zeros(1)})
    >>> layout.flatten({"w": torch.ones(2, 1), "b": torch.zeros(1)})
    tensor([1., 1., 0.])
    """

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        return cls({name: tensor.shape for name, tensor in tensors.items()})

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """By name -> [entries]."""
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """[..., entries] -> views by name, [..., *shape]."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes.values()], dim=-1)
        pairs = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view((*vector.shape[:-1], *shape)) for (name, shape), part in pairs}
