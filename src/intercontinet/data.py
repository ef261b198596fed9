"""Examples: a pair of tensors, a Dataset or a DataLoader, brought into one form, checked, and identified by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from intercontinet.errors import DeviceMismatch, InvalidData

Data = tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]


def collect(data: Data) -> tuple[Tensor, Tensor]:
    """All examples as ``(x, y)``: x [examples, ...], y [examples].

    >>> x, y = collect((torch.zeros(3, 2), torch.tensor([0, 1, 1])))
    >>> len(x), len(y)
    (3, 3)
    """
    if isinstance(data, (tuple, list)):
        if len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
            raise InvalidData("data must be a pair of tensors (x, y), a Dataset or a DataLoader of such pairs")
        return _on_one_device(data[0], data[1])
    if isinstance(data, DataLoader):
        parts = list(_pairs(data))
        if not parts:
            raise InvalidData("the DataLoader yields no batch: there is nothing to learn or certify")
        return _on_one_device(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
    if isinstance(data, Dataset):
        return collect(DataLoader(data, batch_size=256))
    raise InvalidData(f"data must be a pair of tensors (x, y), a Dataset or a DataLoader, not {type(data).__name__}")


def _pairs(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidData("every batch of the DataLoader must be a pair (x, y)")
        if not all(isinstance(part, Tensor) for part in batch):
            kinds = " and ".join(type(part).__name__ for part in batch)
            raise InvalidData(
                f"every batch of the DataLoader must be a pair of tensors, not {kinds}: convert in the Dataset"
            )
        yield batch[0], batch[1]


def _on_one_device(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.device != y.device:
        raise DeviceMismatch(f"inputs are on {x.device} and labels on {y.device}: move one with .to('{x.device}')")
    return x, y


def check_inputs(x: Tensor, device: torch.device) -> None:
    """Inputs must exist, be float32 and finite, and lie where the model is."""
    if not isinstance(x, Tensor):
        raise InvalidData(f"inputs must be a tensor, not {type(x).__name__}: pass torch.as_tensor(x)")
    if x.dim() == 0 or len(x) == 0:
        raise InvalidData("the data is empty: give at least one example")
    if x.dtype != torch.float32:
        kind = str(x.dtype).removeprefix("torch.")
        raise InvalidData(f"inputs are {kind}; certificates speak of float32 inference: pass x.float()")
    if x.device != device:
        raise DeviceMismatch(f"the data is on {x.device} and the model on {device}: move one with .to('{device}')")
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x.flatten(1) if x.dim() > 1 else x[:, None])).any(1).nonzero()[0])
        raise InvalidData(f"example {bad} holds NaN or infinite values: remove or repair it")


def check_labels(y: Tensor, examples: int, outputs: int, classes: Sequence[int] | None) -> None:
    """Labels must be whole numbers, one an example, each naming an output that takes part."""
    if y.dim() != 1 or len(y) != examples:
        raise InvalidData(
            f"labels have shape {tuple(y.shape)}; expected one whole number for each of {examples} examples"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidData(f"labels are {str(y.dtype).removeprefix('torch.')}; expected whole numbers: pass y.long()")
    allowed = range(outputs) if classes is None else classes
    for which in allowed:
        if not 0 <= which < outputs or (classes is not None and list(classes).count(which) > 1):
            raise InvalidData(
                f"class {which} is given twice or out of range: the model's outputs are 0 to {outputs - 1}"
            )
    for label in torch.unique(y).tolist():
        if label not in allowed:
            where = f"0 to {outputs - 1}" if classes is None else ", ".join(map(str, classes))
            raise InvalidData(f"label {label} is out of range: the classes of this task are {where}")


def fingerprint(x: Tensor, y: Tensor) -> str:
    """A hash of the examples that does not depend on their order.

    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    >>> fingerprint(x, y) == fingerprint(x.flip(0), y.flip(0)), fingerprint(x, y) == fingerprint(x, 1 - y)
    (True, False)
    """
    rows = x.detach().cpu().contiguous().flatten(1).numpy() if x.dim() > 1 else x.detach().cpu()[:, None].numpy()
    shape = str((str(x.dtype), tuple(x.shape[1:]))).encode()
    total = 0
    for row, label in zip(rows, y.tolist(), strict=True):
        total += int.from_bytes(
            hashlib.sha256(shape + row.tobytes() + int(label).to_bytes(8, "little", signed=True)).digest(), "little"
        )
    return f"{total % (1 << 256):064x}"
