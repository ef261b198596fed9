"""The one who sees every torch function of a forward pass and keeps the notes."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import sep
from pathlib import Path
from typing import Any, NoReturn, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from intercontinet.bounds import functions
from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.elementwise import power, set_item
from intercontinet.bounds.functions import function_rule, plain_name
from intercontinet.bounds.linear import bounded_linear, linear
from intercontinet.bounds.plain import edition, memory, unlike_itself
from intercontinet.bounds.registry import rule_for
from intercontinet.bounds.tape import Boxes, Known, Named, Note, Slot, leaves, mapped
from intercontinet.errors import InvalidRegion, UnsupportedLayer
from intercontinet.interval import Interval

_NOT_THE_USERS = (str(Path(__file__).parent.parent) + sep, str(Path(torch.__file__).parent) + sep)
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_WAY_OUT = (
    "give the module round it a rule (@intercontinet.rule), or freeze that part and all before it and give drift="
)


class Recorder(TorchFunctionMode):
    """Sees every torch function of a forward pass, and keeps the notes; ``drifts``: what is computed may differ."""

    def __init__(
        self, model: nn.Module, names: Collection[str], movable: Collection[str] | None, drifts: bool = False
    ) -> None:
        super().__init__()
        self.drifts = drifts
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        own = parameters | buffers
        self.names = {id(tensor): name for name, tensor in own.items() if name in names}
        self.movable = movable
        self.notes: list[Note] = []
        self.refusal: UnsupportedLayer | None = None
        self.busy = False  # with a function or a layer: what it does inside is seen as a whole
        self._own = {id(tensor): tensor for tensor in own.values()}
        self._buffers = {id(tensor) for tensor in buffers.values()}
        self._own_memory = {memory(tensor) for tensor in own.values() if tensor.numel()}
        self._staying: set[str] = set()  # buffers that were looked at: a region must not let them move
        self._slots: dict[int, Slot | None] = {}  # by id; None: nothing may be said of it any more
        self._editions: dict[int, int] = {}
        self._alive: dict[int, list[Tensor]] = {}  # by memory: so that no id is used twice
        self._written: set[int] = set()  # memory that followed values were written into: only slots speak for it
        self._seen: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # outcomes of functions
        self._exact: dict[int, tuple[Tensor, int]] = {}  # inputs, as they are or moved about, and their editions
        self._views: dict[int, tuple[Tensor, Tensor, Any]] = {}  # by id: a view, what it is a part of, and which
        self._thread = threading.get_ident()

    def begin(self, part: Tensor) -> Slot | None:
        """An input's slot; whole numbers, and with ``movable`` all inputs, are known as they are."""
        self._seen[id(part)] = part
        if self.movable is not None or not part.is_floating_point():
            self._exact[id(part)] = part, edition(part)
            return None
        return self._new(part)

    def refuse(self, complaint: str) -> NoReturn:
        """Raise, and remember it: torch takes some errors of comparisons as an answer, and models catch errors too."""
        error = UnsupportedLayer(complaint)
        self.refusal = self.refusal or error
        raise error

    def depends(self, value: Tensor) -> bool:
        """Whether a value may differ for other weights, inputs or roundings."""
        if id(value) in self._slots or memory(value) in self._written:
            return True
        name = self.names.get(id(value))
        return name is not None and (self.movable is None or name in self.movable)

    def follows(self, value: Tensor) -> bool:
        return self.depends(value) or (self.movable is None and value.is_floating_point())

    def settled(self, value: Tensor) -> bool:
        """Whether a value is a constant to the last bit; buffers are, which is checked against the region."""
        return not self.depends(value) or (id(value) in self._buffers and id(value) not in self._slots)

    def check_origin(self, values: Iterable[Tensor], place: str) -> None:
        for value in values:
            if not (id(value) in self._slots or id(value) in self._own or self._seen.get(id(value)) is value):
                self.refuse(
                    f"{place} uses a tensor that is no parameter, buffer or input and was not made in this pass (or out"
                    " of sight, by a script or a thread): it could hold old weights. Make it a buffer (register_buffer)"
                )

    def reference(self, value: Any) -> Any:
        """What stands for a value in the notes."""
        if not isinstance(value, Tensor):
            return value
        if id(value) in self._slots or memory(value) in self._written:
            slot = self._slots.get(id(value))
            if slot is None:
                self.refuse(
                    f"{where()} uses a tensor that was changed in place through another view of it (write to a copy), "
                    "or indices that depend on weights"
                )
            if self._editions[slot.index] != edition(value):
                self.refuse(f"{where()} uses a tensor that was changed in place out of sight: write to a copy")
            return slot
        if id(value) in self.names:
            return Named(self.names[id(value)])
        exact = self.movable is None or id(value) in self._own or not value.is_floating_point() or self._is_exact(value)
        return Known(value.detach().clone(), computed=not exact)

    def _is_exact(self, value: Tensor) -> bool:
        known = self._exact.get(id(value))
        return known is not None and known[1] == edition(value)

    def _new(self, value: Tensor) -> Slot:
        slot = Slot(len(self._editions), tuple(value.shape))
        self._editions[slot.index] = edition(value)
        self._slots[id(value)] = slot
        self._alive.setdefault(memory(value), []).append(value)
        return slot

    def note(self, place: str, apply: Callable[..., Any], args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Run an operation and write it down: arguments first, since it may change them in place."""
        given = list(_tensors((args, kwargs)))
        before = {id(value): edition(value) for value in given}
        template = mapped(self.reference, (tuple(args), dict(kwargs)))
        wholes = self._wholes(args[0]) if args and isinstance(args[0], Tensor) else []
        out = run()
        returned = list(_tensors(out))
        for value in given:
            if before[id(value)] != edition(value) and not any(memory(value) == memory(other) for other in returned):
                self.refuse(f"{place} changes in place what it is given, and returns something else: write to a copy")
        for value in returned:
            if value.dtype == torch.int64 and len(returned) > 1:
                continue  # indices beside values
            if value.dtype != torch.float32 or value.is_inference():
                kind = "an inference tensor" if value.is_inference() else str(value.dtype).removeprefix("torch.")
                self.refuse(
                    f"{place} gives {kind}: promises are made about float32 alone; what follows from a comparison, or "
                    "another precision, cannot be bounded"
                )
            if before.get(id(value), edition(value)) != edition(value):
                self._overwritten(value, place)
        slots = mapped(self._filled, out)
        head = None
        if apply is bounded_linear and isinstance(slots, Slot) and len(slots.shape) == 2 and len(template[0]) > 1:
            hidden, weight, bias = (*template[0], template[1].get("bias"))[:3]
            if isinstance(weight, Named) and (bias is None or isinstance(bias, Named)):
                head = hidden, weight, bias
        self.notes.append(Note(place, apply, template[0], template[1], slots, head))
        if isinstance(slots, Slot) and before.get(id(out), edition(out)) != edition(out):
            for whole, index, reference in wholes:  # of which a part was written to
                part, slots = slots, self._new(whole)
                self.notes.append(Note(place, set_item, (reference, index, part), {}, slots))
        return out

    def _wholes(self, part: Tensor) -> list[tuple[Tensor, Any, Any]]:
        """What a tensor was taken out of by an index, and what that was taken out of, with what stands for them."""
        found: list[tuple[Tensor, Any, Any]] = []
        while id(part) in self._views:
            _, part, index = self._views[id(part)]
            if not isinstance(self._slots.get(id(part)), Slot) and memory(part) in self._written:
                break
            found.append((part, index, self.reference(part)))
        return found

    def _taken(self, part: Any, args: tuple[Any, ...]) -> None:
        """Remember what is a view of a tensor by an index."""
        if isinstance(part, Tensor) and part is not args[0] and memory(part) == memory(args[0]):
            self._views[id(part)] = part, args[0], args[1]

    def _filled(self, leaf: Any) -> Slot | None:
        """The slot for one outcome; whole numbers have none, and what uses them is refused."""
        if not isinstance(leaf, Tensor):
            return None
        if leaf.is_floating_point():
            return self._new(leaf)
        self._forget(leaf)
        return None

    def _forget(self, value: Tensor) -> None:
        """Let nothing be said of a value any more."""
        self._alive.setdefault(memory(value), []).append(value)
        self._slots[id(value)] = None

    def _overwritten(self, value: Tensor, place: str) -> None:
        if memory(value) in self._own_memory:
            self.refuse(f"{place} changes a parameter or buffer of the model in place: write to a copy")
        if value.numel():
            self._written.add(memory(value))
        for other in self._alive.get(memory(value), ()):
            if other is not value:
                self._slots[id(other)] = None

    def wrap(self, model: nn.Module) -> None:
        """Put a forward that notes the layer as a whole on every layer with a rule."""
        for path, layer in model.named_modules():
            found = rule_for(layer)
            if found is not None or isinstance(layer, _FUSED):
                vars(layer)["forward"] = self._wrapped(path, layer, found)

    def _wrapped(self, path: str, layer: nn.Module, found: Callable[..., Any] | None) -> Callable[..., Any]:
        original = layer.forward
        first = next(iter(inspect.signature(original).parameters), "")
        place = f"layer '{path}' ({type(layer).__name__})" if path else f"the model itself ({type(layer).__name__})"

        def apply(arithmetic: Arithmetic, parameters: Boxes, x: Any, *others: Any, **options: Any) -> Any:
            assert found is not None
            boxed = [Interval.point(v) if isinstance(v, Tensor) else v for v in (x, *others)]
            return found(layer, parameters, boxed[0], arithmetic, *boxed[1:], **options)

        def watched(own: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
            if found is linear and len(args) == 1 and not kwargs:
                args = *args, layer.weight, layer.bias
                return self.note(place, bounded_linear, args, {}, lambda: original(args[0]))
            return self.note(place, apply, (own, *args), kwargs, lambda: original(*args, **kwargs))

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.busy or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            if not args and first in kwargs:
                args = (kwargs.pop(first),)
            with torch._C.DisableTorchFunction():
                self.busy = True
                try:
                    tensors = (*layer.named_parameters(), *layer.named_buffers())  # now: they may have been swapped
                    own = {local: tensor for local, tensor in tensors if tensor.is_floating_point()}
                    given = [*_tensors((args, kwargs)), *own.values()]
                    self.check_origin(given, place)
                    followed = any(self.follows(value) for value in given)
                    if complaint := unlike_itself(layer):
                        self.refuse(f"{place} {complaint}")
                    if followed and found is not None:
                        return watched(own, *args, **kwargs)
                    if not followed and isinstance(layer, _FUSED):  # as fast, and as rounded, as when nobody looks
                        out = original(*args, **kwargs)
                        self._seen.update({id(value): value for value in _tensors(out)})
                        return out
                    if isinstance(layer, nn.TransformerEncoder) and layer.use_nested_tensor:
                        self._check_unpadded(place, *args, **kwargs)
                finally:
                    self.busy = False
            return original(*args, **kwargs)

        forward.notes_for_bounds = True  # type: ignore[attr-defined]  # so that it is told from a user's
        return forward

    def _check_unpadded(
        self, place: str, src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
    ) -> None:
        if src_key_padding_mask is not None:
            self.refuse(
                f"{place} puts zeros in the place of padding where it runs fast, and only there: build it with "
                "enable_nested_tensor=False"
            )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        busy, self.busy = self.busy, True
        try:
            return self._handled(func, plain_name(func), args, dict(kwargs or {}))
        finally:
            self.busy = busy

    def _handled(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in functions.LOOKING or (name == "type" and len(args) == 1 and not kwargs):
            return func(*args, **kwargs)
        given = list(_tensors((args, kwargs)))
        self.check_origin(given, where(name))
        for target in _tensors(functions.written(func, args, kwargs)):
            if target.numel() and memory(target) in self._own_memory:
                self.refuse(f"{where(name)} changes a parameter or buffer of the model in place: write to a copy")
        if functions.draws(name, args, kwargs):
            self.refuse(f"{where(name)} draws at random, about which nothing can be promised: remove it")
        if name in functions.CREATING:
            return self._created(func, name, args, kwargs)
        subjects = list(_tensors(args[:1])) if name in functions.SHAPED_BY_OTHERS else given
        if not any(self.follows(value) for value in subjects):
            return self._unnoted(func, name, args, kwargs, subjects)
        if name in functions.OF_CONSTANTS and all(self.settled(value) for value in subjects):
            for value in subjects:
                self._stays(value)
            return self._unnoted(func, name, args, kwargs, subjects)
        if name in functions.READING:
            self.refuse(
                f"{where(name)} turns values that depend on the weights into Python: another branch could be taken "
                f"for other weights. Write it with tensors, {_WAY_OUT}0"
            )
        if name in functions.COMPARING:
            self.refuse(
                f"{where(name)} compares values that depend on the weights: another branch could be taken for other "
                f"weights. Write it with minimum, maximum or clamp, {_WAY_OUT}0"
            )
        if name == "mul" and len(args) == 2 and args[0] is args[1]:
            return self.note(where(name), power, args[:1], kwargs, lambda: func(*args, **kwargs))
        apply = bounded_linear if name == "linear" else function_rule(func, name)
        if apply is None:
            self.refuse(f"{where(name)} has no rule: {_WAY_OUT}")
        if name == "setitem":  # returns nothing: what it was given is what it puts out

            def run() -> Tensor:
                func(*args, **kwargs)
                return cast(Tensor, args[0])

            self.note(where(name), apply, args, kwargs, run)
            return None
        out = self.note(where(name), apply, args, kwargs, lambda: func(*args, **kwargs))
        if name == "getitem":
            self._taken(out, args)
        return out

    def _created(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A new tensor, known to the last bit unless it copies values."""
        value = functions.copied(name, args, kwargs)
        if any(self.depends(part) for part in _tensors(value)):
            if name in ("tensor", "as_tensor") and isinstance(value, Tensor):
                return self.note(where(name), functions.same, (value,), {}, lambda: func(value, *args[1:], **kwargs))
            self.refuse(f"{where(name)} copies values that depend on the weights: use torch.stack or torch.cat")
        out: Tensor = func(*args, **kwargs)
        if name in ("empty", "empty_like", "new_empty"):
            if not out.is_floating_point():
                self.refuse(f"{where(name)} leaves numbers to chance: use zeros")
            out.fill_(torch.nan)  # so that what is never written is never certain
        elif self.movable is None and name == "arange" and bool((out != out.floor()).any()):
            self.refuse(f"{where(name)} rounds on the way to broken numbers: count in whole ones, then divide")
        self._seen[id(out)] = out
        self._exact[id(out)] = out, edition(out)
        return out

    def _unnoted(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        subjects: Sequence[Tensor],
    ) -> Any:
        """Run what has to do with constants only, or with nothing that moves."""
        known = functions.OF_CONSTANTS | functions.OF_WHOLE_NUMBERS
        exact = all(not v.is_floating_point() or id(v) in self._own or self._is_exact(v) for v in subjects)
        shaky, exact = self.drifts and not exact, exact and name in functions.OF_CONSTANTS
        out = func(*args, **kwargs)
        if shaky and (name in functions.READING or (isinstance(out, Tensor) and not out.is_floating_point())):
            self.refuse(
                f"{where(name)} decides by values that frozen layers compute, and with drift they may differ: another "
                "decision could be taken. Write it with tensors, or give drift=0 (bit for bit as computed here)"
            )
        for value in _tensors(out):
            if shaky and not value.is_floating_point():  # indices beside values
                self._forget(value)
                continue
            if self.movable is None and value.is_floating_point() and name not in known:
                self.refuse(f"{where(name)} makes floating-point values in a way that may round: use .float()")
            self._seen[id(value)] = value
            if exact and name != "data" and not value.is_inference():
                self._exact[id(value)] = value, edition(value)
        if name == "getitem":
            self._taken(out, args)
        return out

    def _stays(self, value: Tensor) -> None:
        """Note that a buffer was read as a constant: the region must hold it as a point, with these very values."""
        name = self.names.get(id(value))
        if name is None or name in self._staying:
            return
        self._staying.add(name)
        kept = value.detach().clone()

        def check(arithmetic: Arithmetic, box: Interval) -> tuple[()]:
            if not box.is_point or not torch.equal(box.lower, kept.to(box.lower)):
                raise InvalidRegion(f"the forward pass reads '{name}', to which the region gives other values")
            return ()

        self.notes.append(Note(f"buffer '{name}'", check, (Named(name),), {}, ()))


def _tensors(template: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves(template) if isinstance(leaf, Tensor))


def where(name: str = "") -> str:
    """The function and the innermost line of the user's own code: neither torch's nor this package's."""
    call = f"'{name}'" if name else "the forward pass"
    frame = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            return f"{call} in {frame.f_code.co_filename}, line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return call
