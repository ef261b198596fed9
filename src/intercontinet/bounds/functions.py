"""Which torch function has which rule. Functions go by plain names, so that ``x + y``, ``x.add_(y)`` and ``torch.add``
are one; a rule gets the arithmetic, then what the function was given: intervals for values that depend on weights or
inputs, tensors of whole numbers or truth values as they are, everything else unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.interval import Interval

FunctionRule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=FunctionRule)

_FUNCTIONS: dict[str, FunctionRule] = {}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions that look at shapes and kinds, never at values.
LOOKING = _words(
    """shape size dim ndim dtype device numel nelement stride is_contiguous is_floating_point is_complex is_cuda is_cpu
    is_nested is_sparse is_meta is_quantized is_mkldnn layout names requires_grad requires_grad_ set_requires_grad grad
    grad_fn is_leaf len _set_grad_enabled get_device element_size itemsize nbytes storage_offset is_inference is_tensor
    data_ptr ndimension is_mps is_autocast_enabled get_autocast_dtype result_type can_cast broadcast_shapes _assert
    is_same_size hash _version"""
)
# Functions whose outcome does not depend on a tensor's values, but for what `copied` says.
CREATING = _words(
    """zeros ones full arange empty eye tensor as_tensor zeros_like ones_like full_like empty_like new_zeros new_ones
    new_full new_empty new_tensor tril_indices triu_indices"""
)
_COPIED = {"tensor": 0, "as_tensor": 0, "new_tensor": 1, "full": 1, "full_like": 1, "new_full": 2}
CONVERTING = _words("float to type type_as")
# Functions of which a second argument gives the shape or the kind, and no value.
SHAPED_BY_OTHERS = _words("to type type_as expand_as view_as reshape_as")
DROPPING = _words(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout"
)
RANDOM = DROPPING | _words(
    """rand randn randint randperm normal bernoulli multinomial rand_like randn_like randint_like poisson uniform
    exponential rrelu gumbel_softmax random geometric cauchy log_normal binomial"""
)
# Functions that carry values over into Python.
READING = _words("bool item tolist int float_ index_ numpy nonzero any all equal allclose is_nonzero array contains")
# Functions that decide by values.
COMPARING = _words("eq ne lt le gt ge isclose argmax argmin argsort")
# Functions that only move entries about: both edges go the same way.
MOVING = _words(
    """reshape view permute transpose swapaxes swapdims movedim moveaxis flatten unflatten ravel squeeze unsqueeze
    expand expand_as view_as reshape_as broadcast_to repeat tile repeat_interleave roll flip fliplr flipud rot90 chunk
    split tensor_split unbind getitem select narrow index_select gather take_along_dim contiguous clone detach T mT t
    H mH data unfold pixel_shuffle pixel_unshuffle channel_shuffle diagonal tril triu alias positive"""
)
# Functions that give constants for constants, to the last bit, wherever they run.
OF_CONSTANTS = (MOVING | CONVERTING | READING | DROPPING) - {"array", "numpy"} | _words(
    """eq ne lt le gt ge logical_and logical_or logical_not logical_xor and or xor invert bitwise_not bitwise_and
    bitwise_or isinf isnan isfinite where masked_fill setitem pad cat stack neg abs minimum maximum amax amin fill zero
    copy long sign signbit one_hot"""
)
# Single operations, which are rounded alike everywhere: of whole numbers, they are known to the last bit.
OF_WHOLE_NUMBERS = _words("add sub rsub mul")


def plain_name(func: Callable[..., Any]) -> str:
    """The name a function goes by: no underscores, no trace of in-place, and for properties their own.

    >>> plain_name(torch.Tensor.__iadd__), plain_name(torch.relu_), plain_name(torch.Tensor.shape.__get__)
    ('add', 'relu', 'shape')
    """
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__", "__delete__"):
        property_name = str(getattr(getattr(func, "__self__", None), "__name__", name))
        return property_name if name == "__get__" else f"{name[2:-2]}_{property_name}"
    if name.startswith("__") and name.endswith("__"):
        name = {"float": "float_", "index": "index_"}.get(name[2:-2], name[2:-2])
    elif name.endswith("_") and not name.startswith("_"):
        name = name[:-1]
    return _SPELLINGS.get(name, name)


_SPELLINGS = {
    "iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "idiv": "div", "truediv": "div",
    "itruediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "absolute": "abs", "concat": "cat", "concatenate": "cat", "clip": "clamp", "rtruediv": "rdiv", "ipow": "pow",
    "imatmul": "matmul", "mm": "matmul", "bmm": "matmul", "row_stack": "vstack",
}  # fmt: skip


def written(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a call may change in place: its first argument, by its name or a flag, or ``out``.

    >>> written(torch.Tensor.add_, (1, 2), {}), written(torch.add, (1, 2), {}), written(torch.add, (1, 2), {"out": 3})
    (((1,), None), ((), None), ((), 3))
    """
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        changes = name in ("__setitem__", "__set__", "__delete__") or (
            name.startswith("__i") and name not in ("__index__", "__int__", "__invert__", "__iter__")
        )
    else:
        changes = name.endswith("_") or bool(kwargs.get("inplace")) or any(arg is True for arg in args[1:])
    return args[:1] if changes else (), kwargs.get("out")


def draws(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws at random: dropout does while training."""
    if name == "scaled_dot_product_attention":
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if name in DROPPING:
        return bool(kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True)))
    return name in RANDOM


def copied(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The values that a new tensor is made from, where it is."""
    if name not in _COPIED:
        return None
    at = _COPIED[name]
    return args[at] if len(args) > at else kwargs.get("fill_value", kwargs.get("data"))


def function(*names: str) -> Callable[[RuleT], RuleT]:
    """Register how bounds pass through the torch functions of these plain names."""

    def register(rule: RuleT) -> RuleT:
        for name in names:
            _FUNCTIONS[name] = rule
        return rule

    return register


def function_rule(func: Callable[..., Any], name: str) -> FunctionRule | None:
    """The rule of a torch function, or None."""
    if name in MOVING:

        def move(arithmetic: Arithmetic, x: Any, *args: Any, **kwargs: Any) -> Any:
            if name in SHAPED_BY_OTHERS:
                args = tuple(arg.lower if isinstance(arg, Interval) else arg for arg in args)
            return moved(lambda edge: func(edge, *args, **kwargs), x)

        return move
    return _FUNCTIONS.get(name)


def known_functions() -> list[str]:
    """Names of the functions that have a rule."""
    return sorted({*_FUNCTIONS, *MOVING, "linear"})


def moved(f: Callable[[Tensor], Any], x: Interval) -> Any:
    """Both edges, moved about alike: an interval, or a tuple of them."""
    low = f(x.lower)
    if isinstance(low, Tensor):
        return Interval.point(low, x.nonnegative) if x.is_point else Interval(low, f(x.upper), x.nonnegative)
    if x.is_point:
        return tuple(Interval.point(part, x.nonnegative) for part in low)
    return tuple(Interval(part, up, x.nonnegative) for part, up in zip(low, f(x.upper), strict=True))


@function("to", "float", "type", "type_as", "cpu", "cuda", *DROPPING)
def same(arithmetic: Arithmetic, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    """Float32 already, and so it stays: other precisions are refused when the pass is recorded; so is Dropout in
    training mode."""
    return x


def boxed(value: Interval | Tensor | float, like: Interval) -> Interval:
    """A number, or a tensor of whole numbers or truth values, as a point among the intervals: rounded to float32, as
    the model rounds it.

    >>> boxed(0.1, Interval.point(torch.zeros(1).double())).lower.item()
    0.10000000149011612
    """
    if isinstance(value, Interval):
        return value
    tensor = torch.as_tensor(value, dtype=torch.float32, device=like.lower.device).to(like.lower.dtype)
    return Interval.point(tensor, bool((tensor >= 0).all()))
