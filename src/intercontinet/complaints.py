"""What is said in one voice of tensors in memory and of those in files. Free of torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from intercontinet.errors import InvalidModel, InvalidRegion, RegionMismatch

Kind = tuple[str, tuple[int, ...]]  # a tensor's type, as safetensors calls it, and shape
LONG, MANY = 200, 5000  # characters of a name, and names, from which on looking for the nearest one takes too long


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or an empty string.

    >>> nearest("EWC", ["ewc", "mas"]), nearest("off", ["offline", "ewc"]), nearest("si", ["offline"])
    (" (did you mean 'ewc'?)", " (did you mean 'offline'?)", '')
    """
    known = [other for other in known if len(other) < LONG]
    close = [other for other in known if other.lower() == name.lower()]
    if not close and len(name) < LONG and len(known) < MANY:
        close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def no_parameters() -> InvalidModel:
    return InvalidModel("there is no floating-point parameter here: pass a module or its state dict")


def wrong_precision(name: str, dtype: str) -> InvalidModel:
    return InvalidModel(
        f"'{name}' is {dtype}, and certificates speak of float32 inference only: call model.float() first"
    )


def not_finite(name: str) -> InvalidModel:
    return InvalidModel(f"'{name}' holds NaN or infinite values: reload or retrain the model before going on")


def crossed(name: str) -> InvalidRegion:
    return InvalidRegion(f"a lower edge of '{name}' is NaN or lies above its upper edge: radii must not be negative")


def unreachable(name: str) -> InvalidRegion:
    return InvalidRegion(f"no finite weight lies between the edges of '{name}': both are the same infinity")


def one_edge(name: str) -> InvalidRegion:
    return InvalidRegion(f"'{name}' has only one edge: give a lower and an upper tensor for every name")


def check_names(model: Mapping[str, tuple[int, ...]], region: Mapping[str, tuple[int, ...]]) -> None:
    """Raise RegionMismatch unless the shapes of a model and of a region are of the same names, and the same."""
    for name, shape in region.items():
        if name not in model:
            raise RegionMismatch(f"the region bounds '{name}', which the model lacks{nearest(name, model)}")
        if model[name] != shape:
            raise RegionMismatch(f"'{name}' has shape {model[name]} in the model and {shape} in the region")
    for name in model:
        if name not in region:
            raise RegionMismatch(
                f"the model's '{name}' has no edges in the region{nearest(name, region)}: leave it out of the weights, "
                "or certify the model that has it"
            )


def check_tied(model: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]) -> dict[str, str]:
    """Those second names of parameters that a state dict holds beside the first ones, after a look at the shapes."""
    pairs = {name: first for name, first in tied.items() if name in model and first in model and first not in tied}
    for name, first in pairs.items():
        if model[name] != model[first]:
            raise RegionMismatch(
                f"'{name}' and '{first}' are one parameter in the model, and have shapes {model[name]} and "
                f"{model[first]} here"
            )
    return pairs


def check_constants(
    model: Mapping[str, Kind], constants: Mapping[str, Kind], tied: Mapping[str, str]
) -> dict[str, str]:
    """The names of all of a state dict's tensors that are not of floating point, each with its name in a certificate.

    Counts of batches play no part unless the certificate says so.

    Args:
        model: Type and shape of each such tensor in the state dict.
        constants: The same, of those in the certificate.
        tied: Second names, each with the first.

    Raises:
        RegionMismatch: Names, types or shapes differ.
    """
    for name in constants:
        if name not in model:
            raise RegionMismatch(
                f"the certificate has a constant '{name}', which the model lacks{nearest(name, model)}"
            )
    pairs = {}
    for name, kind in model.items():
        first = name if name in constants else tied.get(name, name)
        if first in constants:
            if kind != constants[first]:
                raise RegionMismatch(
                    f"the constant '{name}' is {_kind(kind)} in the model and {_kind(constants[first])} in the "
                    "certificate"
                )
            pairs[name] = first
        elif not is_count(name):
            raise RegionMismatch(
                f"the certificate knows no constant '{name}'{nearest(name, constants)}: leave it out of the weights, "
                "or certify the model that has it"
            )
    return pairs


def is_count(name: str) -> bool:
    """Whether a name is that of a number of batches seen, as BatchNorm counts them."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def _kind(kind: Kind) -> str:
    return f"{kind[0]} {kind[1]}"
