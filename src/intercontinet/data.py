"""Examples: a pair of tensors, a Dataset or a DataLoader, brought into one form, checked, and identified by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from intercontinet.errors import DeviceMismatch, InvalidData

Inputs = Tensor | tuple[Tensor, ...]  # a tuple for models that take several
Data = tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]
P = TypeVar("P")


def parts(x: P | tuple[P, ...]) -> tuple[P, ...]:
    """The inputs of a model, one by one."""
    return x if isinstance(x, tuple) else (x,)


def rows(x: Inputs, index: Tensor | slice) -> Inputs:
    """Some examples."""
    return tuple(part[index] for part in x) if isinstance(x, tuple) else x[index]


def collect_one(data: Data) -> tuple[Tensor, Tensor]:
    """:func:`collect`, for those who take models with one input only."""
    x, y = collect(data)
    if isinstance(x, tuple):
        raise InvalidData("this takes models with one input, and each example has several: use protect and keep_inside")
    return x, y


def collect(data: Data) -> tuple[Inputs, Tensor]:
    """All examples as ``(x, y)``: x [examples, ...], or a tuple of such, y [examples, ...].

    >>> x, y = collect((torch.zeros(3, 2), torch.tensor([0, 1, 1])))
    >>> len(x), len(y)
    (3, 3)
    """
    if isinstance(data, (tuple, list)):
        return _on_one_device(
            *_pair(data, "data must be a pair of tensors (x, y), a Dataset or a DataLoader of such pairs")
        )
    if isinstance(data, DataLoader):
        batches = list(_pairs(_in_order(data)))
        if not batches:
            raise InvalidData("the DataLoader yields no batch: there is nothing to learn or certify")
        inputs = [torch.cat(columns) for columns in zip(*(parts(x) for x, _ in batches), strict=True)]
        x = tuple(inputs) if isinstance(batches[0][0], tuple) else inputs[0]
        return _on_one_device(x, torch.cat([y for _, y in batches]))
    if isinstance(data, Dataset):
        return collect(DataLoader(data, batch_size=256))
    raise InvalidData(f"data must be a pair of tensors (x, y), a Dataset or a DataLoader, not {type(data).__name__}")


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader that shuffles, without that: which examples a learner holds back goes by their places.

    >>> data = list(zip(torch.arange(9.0), torch.arange(9)))
    >>> collect(DataLoader(data, batch_size=2, shuffle=True))[1]
    tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])
    """
    sampler = loader.sampler
    if loader.batch_size is None or type(sampler) is not RandomSampler or sampler.replacement:
        return loader
    if type(loader.batch_sampler) is not BatchSampler or sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
        return loader
    how = {"collate_fn": loader.collate_fn, "num_workers": loader.num_workers, "drop_last": loader.drop_last}
    return DataLoader(loader.dataset, loader.batch_size, worker_init_fn=loader.worker_init_fn, **how)  # type: ignore[arg-type]


def _pair(pair: Any, complaint: str) -> tuple[Inputs, Tensor]:
    """Inputs and labels; inputs may be several tensors, as a tuple or list."""
    if len(pair) == 2 and isinstance(pair[1], Tensor):
        x = pair[0]
        if isinstance(x, Tensor):
            return x, pair[1]
        if isinstance(x, (tuple, list)) and x and all(isinstance(part, Tensor) for part in x):
            return tuple(x), pair[1]
    raise InvalidData(complaint)


def _pairs(loader: DataLoader[Any]) -> Iterator[tuple[Inputs, Tensor]]:
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidData("every batch of the DataLoader must be a pair (x, y)")
        kinds = " and ".join(type(part).__name__ for part in batch)
        yield _pair(
            batch, f"every batch of the DataLoader must be a pair of tensors, not {kinds}: convert in the Dataset"
        )


def _on_one_device(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
    for part in parts(x):
        if part.device != y.device:
            raise DeviceMismatch(
                f"inputs are on {part.device} and labels on {y.device}: move one with .to('{part.device}')"
            )
    return x, y


def check_inputs(x: Inputs, device: torch.device) -> None:
    """Inputs must exist, be float32 and finite, or whole numbers, and lie where the model is."""
    for part in parts(x):
        if not isinstance(part, Tensor):
            raise InvalidData(f"inputs must be a tensor, not {type(part).__name__}: pass torch.as_tensor(x)")
        if type(part) not in (Tensor, Parameter):
            raise InvalidData(
                f"inputs are a {type(part).__name__}, which computes in its own way: pass x.as_subclass(torch.Tensor)"
            )
        if part.dim() == 0 or len(part) == 0:
            raise InvalidData("the data is empty: give at least one example")
        if len(part) != len(parts(x)[0]):
            raise InvalidData(
                f"one input has {len(parts(x)[0])} examples and another {len(part)}: give as many of each"
            )
        if part.dtype not in (torch.float32, torch.int64, torch.int32, torch.bool):
            kind = str(part.dtype).removeprefix("torch.")
            raise InvalidData(f"inputs are {kind}; certificates speak of float32 inference: pass x.float()")
        if part.device != device:
            raise DeviceMismatch(
                f"the data is on {part.device} and the model on {device}: move one with .to('{device}')"
            )
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            bad = int((~torch.isfinite(part.flatten(1) if part.dim() > 1 else part[:, None])).any(1).nonzero()[0])
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


def fingerprint(x: Inputs, y: Tensor) -> str:
    """A hash of the examples that does not depend on their order.

    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    >>> fingerprint(x, y) == fingerprint(x.flip(0), y.flip(0)), fingerprint(x, y) == fingerprint(x, 1 - y)
    (True, False)
    """
    shape = str([(str(part.dtype), tuple(part.shape[1:])) for part in parts(x)]).encode()
    if isinstance(x, Tensor) and not y.is_floating_point() and y.dim() == 1:
        shape = str((str(x.dtype), tuple(x.shape[1:]))).encode()  # as since version 1
    total = sum(int.from_bytes(digest, "little") for digest in _digests((*parts(x), _target(y)), shape))
    return f"{total % (1 << 256):064x}"


def digests(x: Inputs) -> Tensor:
    """A hash of each example, whatever its label: whole numbers, [examples]."""
    first = [int.from_bytes(digest[:8], "little", signed=True) for digest in _digests(parts(x))]
    return torch.tensor(first, dtype=torch.int64)


def copied(own: Tensor, earlier: Tensor | None = None) -> Tensor:
    """By digests, which examples occur more than once, or among earlier ones too: [examples].

    >>> copied(digests(torch.tensor([[1.0], [2.0], [1.0], [3.0]])), digests(torch.tensor([[3.0]])))
    tensor([ True, False,  True,  True])
    """
    _, place, counts = torch.unique(own, return_inverse=True, return_counts=True)
    several: Tensor = counts[place] > 1
    return several if earlier is None else several | torch.isin(own, earlier)


def check_apart(x: Inputs, others: Inputs) -> None:
    """Refuse unseen examples that were seen, whatever their labels.

    >>> check_apart(torch.eye(3), torch.eye(3)[1:])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    intercontinet.errors.InvalidData: 2 of 2 unseen examples (the first is number 0) are in the data too, ...
    """
    seen = set(_digests(parts(x)))
    twice = [place for place, digest in enumerate(_digests(parts(others))) if digest in seen]
    if twice:
        raise InvalidData(
            f"{len(twice)} of {len(parts(others)[0])} unseen examples (the first is number {twice[0]}) are in the data "
            "too, and shaped the region: take them out"
        )


def _digests(columns: Sequence[Tensor], salt: bytes = b"") -> Iterator[bytes]:
    """A hash of each example."""
    flat = [part.detach().cpu().contiguous().reshape(len(part), -1).numpy() for part in columns]
    for row in zip(*flat, strict=True):
        yield hashlib.sha256(salt + b"".join(part.tobytes() for part in row)).digest()


def _target(y: Tensor) -> Tensor:
    """Labels as eight bytes each, little-endian; other targets as they are."""
    return y if y.is_floating_point() else y.long()
