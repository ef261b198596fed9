"""What the commands for shipped models share: build a model by name, read examples, fine-tune inside a region."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from intercontinet.complaints import nearest
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.data import Inputs, rows
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.files import load_weights
from intercontinet.keep_inside import keep_inside
from intercontinet.question import movable_in
from intercontinet.region import Region
from intercontinet.state import second_names
from intercontinet.tasks.own import load_arrays, read_images

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def built(spec: str, weights: Path) -> nn.Module:
    """The model that ``package.module:factory`` makes, with weights from a file, in evaluation mode.

    The current folder is searched first, as ``python -m`` does. The factory is called without arguments.

    Raises:
        InvalidSetting: There is no such module or factory, or it fails, or makes no module.
        InvalidModel: The weights do not fit.
    """
    place, colon, name = spec.partition(":")
    if not (place and colon and name):
        raise InvalidSetting(f"--model {spec}: say package.module:factory, such as mymodels.resnet:build")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        home = importlib.import_module(place)
    except Exception as error:  # whatever the module does as it is imported
        why = f"{type(error).__name__}: {_line(error)}"
        raise InvalidSetting(f"cannot import '{place}' from {Path.cwd()} or the installed packages: {why}") from error
    factory = getattr(home, name, None)
    if not callable(factory):
        raise InvalidSetting(f"'{place}' has no function '{name}'{nearest(name, vars(home))}")
    try:
        model = factory()
    except Exception as error:
        raise InvalidSetting(f"{spec} fails: {type(error).__name__}: {_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise InvalidSetting(f"{spec} makes a {type(model).__name__}: it must return an nn.Module")
    state, own = load_weights(weights), model.state_dict()
    try:
        _check_fits(state, own, second_names(model))
        model.load_state_dict(state, strict=False)
    except (InvalidModel, RuntimeError) as error:
        raise InvalidModel(f"the weights in {weights} do not fit {spec}: {_line(error)}") from error
    return model.eval()


def _check_fits(state: Mapping[str, Tensor], model: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    """Names, shapes and types must agree; a parameter with several names may come under the first alone."""
    for name, tensor in model.items():
        if name not in state:
            if tied.get(name) in state:
                continue
            raise InvalidModel(f"the file lacks '{name}'{nearest(name, state.keys() - model.keys())}")
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            shapes = f"{_kind(state[name])} in the file and {_kind(tensor)} in the model"
            raise InvalidModel(f"'{name}' is {shapes}")
    for name in state:
        if name not in model:
            raise InvalidModel(f"the model lacks '{name}'{nearest(name, model)}")
    for name, first in tied.items():
        if name in state and not torch.equal(state[name], state[first]):
            raise InvalidModel(f"'{name}' and '{first}' are one parameter in the model, and differ in the file")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def examples(path: Path) -> tuple[Inputs, Tensor]:
    """Examples from an ``.npz`` file, or from a folder of images with one folder inside for each class.

    The file holds ``x`` (or ``x0``, ``x1``, ... where the model takes several inputs) [n, ...]: floats, whole numbers
    such as words' numbers, or bytes, which are divided by 255; and ``y`` [n, ...]: classes, or the criterion's targets.
    """
    if path.is_dir():
        return read_images(path)
    arrays = load_arrays(path)
    if "y" not in arrays or not ({"x", "x0"} & arrays.keys()):
        raise InvalidData(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: save x (or x0, x1, ...) and y in it")
    names = ["x"] if "x" in arrays else [f"x{i}" for i in range(len(arrays)) if f"x{i}" in arrays]
    inputs = tuple(_tensor(path, name, arrays[name], bytes_are_pixels=True) for name in names)
    return inputs[0] if names == ["x"] else inputs, _tensor(path, "y", arrays["y"], bytes_are_pixels=False)


def _tensor(path: Path, name: str, values: NDArray[Any], bytes_are_pixels: bool) -> Tensor:
    if values.dtype == np.uint8 and bytes_are_pixels:
        return torch.from_numpy(values.astype(np.float32)).div_(255)
    if np.issubdtype(values.dtype, np.floating):
        with np.errstate(over="ignore"):
            return torch.from_numpy(values.astype(np.float32))
    if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
        return torch.from_numpy(values.astype(np.int64))
    raise InvalidData(f"{name} in {path} is {values.dtype}: give numbers")


def criterion_of(tolerance: float | None, labels: bool) -> Criterion | None:
    """What the options say counts as right; None for classes."""
    if tolerance is not None and labels:
        raise InvalidSetting("--tolerance and --multi-label exclude each other")
    if tolerance is not None:
        return regression(tolerance)
    return multi_label() if labels else None


def update(
    model: nn.Module,
    data: tuple[Inputs, Tensor],
    region: Region,
    criterion: Criterion | None,
    *,
    epochs: int,
    rate: float,
    batch: int,
    optimizer: str,
    seed: int,
    listen: Callable[[int, float], None],
) -> None:
    """Fine-tune a model in place, inside a region: cross-entropy for classes and labels, squares for numbers.

    Layers with running statistics, which the region freezes, stay in evaluation mode.

    Args:
        listen: Is told the epoch and its mean loss.
    """
    if optimizer not in OPTIMIZERS:
        raise InvalidSetting(f"there is no optimizer '{optimizer}': use {' or '.join(OPTIMIZERS)}")
    if epochs < 1 or batch < 1 or not rate > 0:
        raise InvalidSetting("epochs and batch must be at least 1, and the rate above 0")
    x, y = data
    free = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    moving = [free[name] for name in movable_in(region) if name in free]
    if not moving:
        raise InvalidSetting("every parameter is frozen, in the region or in the model: there is nothing to train")
    training = OPTIMIZERS[optimizer](moving, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    for parameter in free.values():  # of what is frozen, no gradient is worth computing
        parameter.requires_grad_(any(parameter is one for one in moving))
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    try:
        with keep_inside(model, training, region):
            for epoch in range(1, epochs + 1):
                total = 0.0
                for chosen in torch.split(torch.randperm(len(y), generator=generator), batch):
                    inputs = rows(x, chosen)
                    loss = _loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), y[chosen], criterion)
                    training.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    training.step()
                    total += float(loss.detach()) * len(chosen)
                listen(epoch, total / len(y))
    finally:
        model.eval()
        for parameter in free.values():
            parameter.requires_grad_()


def _loss(out: Tensor, y: Tensor, criterion: Criterion | None) -> Tensor:
    if criterion is None:
        return F.cross_entropy(out, y)
    target = y.to(out.dtype).reshape(out.shape)
    if criterion.name.startswith("regression"):
        return F.mse_loss(out, target)
    return F.binary_cross_entropy_with_logits(out, target)
