"""Which seeds learn at a time: all at once, or, where memory gives out, fewer, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from intercontinet.engine.record import give_back_memory
from intercontinet.errors import OutOfMemory, memory_gave_out
from intercontinet.learners.method import Memory

Learn = Callable[[slice, Tensor, Memory], tuple[Tensor, Memory]]


class Turns:
    """Takes stacked seeds through a lesson. Only what those know whose turn it is lies on the device.

    Args:
        device: Where they learn.
        at_once: How many at a time; fewer from the first time on that memory gave out.
        say: Told of that, in a line.
    """

    def __init__(self, device: torch.device, at_once: int, say: Callable[[str], None]) -> None:
        self.device, self.at_once, self._say = device, at_once, say

    def through(self, weights: Tensor, memory: Memory, learn: Learn) -> tuple[Tensor, Memory]:
        """What all seeds come to, on the CPU.

        Args:
            weights: [seeds, entries], on the CPU.
            memory: What the method carries, [seeds, ...] each, on the CPU.
            learn: From some rows, and what these know, on the device, to what they come to. Tried again with fewer
                rows where memory gives out.

        Raises:
            OutOfMemory: There is too little for one seed.
        """
        turns: list[tuple[Tensor, Memory]] = []
        first = 0
        while first < len(weights):
            rows = slice(first, min(first + self.at_once, len(weights)))
            turn = self._tried(rows, weights, memory, learn)
            if turn is None:
                self._take_fewer(rows.stop - rows.start)
                continue
            turns.append(turn)
            first = rows.stop
        joined = _joined([made for made, _ in turns])
        return joined, {name: _joined([left[name] for _, left in turns]) for name in turns[0][1]}

    def _tried(self, rows: slice, weights: Tensor, memory: Memory, learn: Learn) -> tuple[Tensor, Memory] | None:
        """What some seeds come to, or None where memory gave out, and then nothing of the attempt is left alive."""
        try:
            known = {name: tensor[rows].to(self.device) for name, tensor in memory.items()}
            made, left = learn(rows, weights[rows].to(self.device), known)
            return made.cpu(), {name: tensor.cpu() for name, tensor in left.items()}
        except (MemoryError, RuntimeError) as error:
            if not memory_gave_out(error):
                raise
        return None

    def _take_fewer(self, seeds: int) -> None:
        """So many seeds at a time were too many."""
        if seeds == 1:
            raise OutOfMemory(
                "memory is too small for even one seed: use a smaller batch_size or net, or, on a GPU, --device cpu"
            )
        self.at_once = (seeds + 1) // 2
        self._say(f"the device ran out of memory: going on with {self.at_once} seed(s) at a time")
        give_back_memory()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; a single one is not copied, which all seeds' memory at once may have no room for."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
