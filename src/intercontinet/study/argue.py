"""Argue with a promise as soon as it is made, inside the very region it speaks of: verify, count again, attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from intercontinet.attack import attack
from intercontinet.certificate import Certificate, verify
from intercontinet.floor import Margins, certify
from intercontinet.learners.exact import parts_of
from intercontinet.learners.method import Lesson
from intercontinet.region import Region
from intercontinet.study.encoders import Examples
from intercontinet.study.state import State
from intercontinet.study.summary import Line

if TYPE_CHECKING:
    from intercontinet.study.run import Run


@dataclass(frozen=True)
class Case:
    """A promise, and what it is about.

    Attributes:
        model: The whole model, as it is now.
        certificate: What it is promised in.
        above: The part of the model that can move at all: attacks need not compute the rest again and again.
        region: The same region, of that part alone.
        rows: What that part is given for each example.
        data: The examples themselves, and their labels.
        classes: The outputs that take part.
        margins: How the learner bounds them.
        drift: What frozen layers may differ by, where the promise allows for it.
    """

    model: nn.Module
    certificate: Certificate
    above: nn.Module
    region: Region
    rows: Tensor
    data: tuple[Tensor, Tensor]
    classes: Sequence[int] | None
    margins: Margins
    drift: float | None

    def argued(self, examples: int, seed: int) -> Line:
        """What comes of it, for examples evenly drawn from all, as a floor's record has it.

        Counts of ``examples``: "certain" by certifying afresh, from the inputs on; "attacked", those that the worst
        weights found get right; "right", those that the model does.

        Raises:
            Violation: The model does not lie in the region.
        """
        verify(self.model, self.certificate)
        (x, y), total = self.data, len(self.rows)
        number = min(examples, total)
        some = torch.arange(number, device=y.device) * total // number
        region = self.certificate.region.to(y.device)
        data = (x[some], y[some])
        floor = certify(self.model, region, data, classes=self.classes, margins=self.margins, drift=self.drift)
        found = attack(self.above, self.region, (self.rows[some], data[1]), seed, classes=self.classes)
        attacked = round(found.accuracy * number)
        return {"examples": number, "certain": floor.certified, "attacked": attacked, "right": floor.correct}


def argue_with(
    run: Run, state: State, lesson: Lesson, learned: Examples, examples: int, say: Callable[[str], None]
) -> None:
    """Note beside every seed's newest floor, in its last line, what came of arguing with it.

    Args:
        run: Whose.
        state: After the task.
        lesson: The task.
        learned: Its examples.
        examples: How many of them to argue with.
        say: Told of a promise that an attack refutes.
    """
    settings = run.config.settings
    for row, seed in enumerate(run.config.seeds):
        certificate, region = run.certificate(state, row), run.region(state.memory, row)
        assert certificate is not None and region is not None
        model, encoder = run.model(state, row).to(run.device), run.encoder(row)
        above = model if encoder is None else parts_of(model)[1].net
        rows, how = learned.shown.to(encoder, row), (settings.get("margins", "joint"), settings.get("drift"))
        case = Case(model, certificate, above, region, rows, (lesson.x, lesson.y), lesson.classes, *how)
        found = state.lines[row][-1]["floor"]["argued"] = case.argued(examples, seed)
        if found["attacked"] < found["certain"]:
            say(
                f"REFUTED: of {found['examples']} examples of task {lesson.name}, seed {seed}, {found['certain']} were "
                f"certain, and an attack leaves {found['attacked']} right. This is a bug: please report it"
            )
