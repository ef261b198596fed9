"""Commands for shipped models: protect, update, attack, verify. Beside :mod:`intercontinet.cli`, which gathers all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intercontinet.errors import InterContiNetError, InvalidSetting, Violation

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from intercontinet.protect import Protecting
    from intercontinet.record import Verdict
    from intercontinet.taskfloor import TaskFloor


def some_path(text: str | Path) -> Path:
    """A path that says something: an empty one, as of a variable that is not set, would be the folder one is in."""
    if not str(text):
        raise typer.BadParameter("it is empty: name a folder or a file, or leave it out")
    return Path(text)


WIDE = 140  # columns
PATH: Any = {"parser": some_path, "metavar": "PATH"}  # of options that say where to write
MODEL = typer.Option(help="What makes the model: package.module:factory, called without arguments.")
WEIGHTS = typer.Option(help="Its weights: a state dict as .safetensors.")
DATA = typer.Option(
    help="Examples: an .npz file with x and y, or a folder of images, one folder inside for each class."
)
TOLERANCE = typer.Option(help="Outputs are numbers, right when no farther than this from y.")
LABELS = typer.Option("--multi-label", help="Outputs are yes or no, each by itself: yes when above 0.")
AS_JSON = typer.Option("--json", help="Print one JSON object, for machines.")


def console_for_pages() -> Console:
    """The terminal, or, in a pipe, a page wide enough for tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, WIDE))


def protect(
    model: Annotated[str, MODEL],
    weights: Annotated[Path, WEIGHTS],
    data: Annotated[Path, DATA],
    out: Annotated[Path, typer.Option(help="The certificate to write; valid whenever it is there.", **PATH)] = Path(
        "model.icn"
    ),
    keep: Annotated[float, typer.Option(help="Share of what is right today that must be certain.")] = 0.95,
    plastic: Annotated[
        list[str] | None,
        typer.Option(help="What may move: all (the default), head (the last linear layer), or a pattern; repeatable."),
    ] = None,
    within: Annotated[Path | None, typer.Option(help="An earlier certificate to stay inside, and to carry on.")] = None,
    task: Annotated[str, typer.Option(help="A name for the floor; the data's by default.")] = "",
    tolerance: Annotated[float | None, TOLERANCE] = None,
    labels: Annotated[bool, LABELS] = False,
    drift: Annotated[
        float | None,
        typer.Option(
            help="Take frozen layers' outputs as computed here, give or take this share of an example's largest entry; "
            "by default every rounding is bounded."
        ),
    ] = None,
    unseen: Annotated[Path | None, typer.Option(help="Examples that shaped nothing, for a floor of their own.")] = None,
    attacked: Annotated[
        bool, typer.Option("--attack/--no-attack", help="Look for the worst weights inside, and record them.")
    ] = True,
    steps: Annotated[
        int | None, typer.Option(help="Steps of the search for a larger region; 100, unless --seconds says how long.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Take no more steps after this time.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the certificate that --out holds.")] = False,
    seed: Annotated[int, typer.Option(help="Makes the search reproducible.")] = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Find a large region round a trained model in which a share of what it gets right is certain."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from intercontinet.certificate import Certificate
    from intercontinet.protect import protect as search
    from intercontinet.question import movable_in
    from intercontinet.release import built, criterion_of, examples

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    bars = Progress(*columns, console=console, disable=not console.is_terminal)
    row = bars.add_task("measuring the model", total=None)

    def listen(heard: Protecting) -> None:
        words = f"step {heard.step}  mean radius {heard.mean_radius:.2g}  certain {heard.certain:.1%}"
        done, total = (heard.seconds, seconds) if heard.steps is None else (heard.step, max(heard.steps, 1))
        bars.update(row, completed=done, total=total, description=words)
        if heard.certificate is not None:
            heard.certificate.save(out)

    with _reporting(as_json, lambda: _left(out)), bars:
        if resume and not out.exists():
            raise InvalidSetting(f"--resume: there is no {out} to go on from")
        if not resume:
            _check_new(out, "choose another --out, go on with --resume, or remove it")
        chosen: Any = plastic or "all"
        certificate = search(
            built(model, weights),
            examples(data),
            keep,
            plastic=chosen,
            within=None if within is None else Certificate.load(within),
            task=task or data.stem,
            criterion=criterion_of(tolerance, labels),
            drift=drift,
            unseen=None if unseen is None else examples(unseen),
            challenge=attacked,
            steps=steps,
            seconds=seconds,
            start=Certificate.load(out) if resume else None,
            seed=seed,
            listen=listen,
        )
        certificate.save(out)
    if as_json:
        size = certificate.region.size(tuple(movable_in(certificate.region)))
        region = {"entries": size.entries, "mean_radius": size.mean_radius, "log_volume": size.log_volume}
        typer.echo(json.dumps({"certificate": str(out), "floors": floors_of(certificate.tasks), "region": region}))
        return
    console_for_pages().print(floor_table(certificate.tasks))
    typer.echo(f"Wrote {out}. Ship it beside the weights; hold updates against it with: intercontinet verify NEW {out}")


def _left(out: Path) -> str:
    if out.exists():
        return f"{out} holds the best region so far, and the same command with --resume goes on from it"
    return "nothing was written"


def update(
    model: Annotated[str, MODEL],
    weights: Annotated[Path, WEIGHTS],
    data: Annotated[Path, DATA],
    certificate: Annotated[Path, typer.Option(help="The .icn file whose region the weights must not leave.")],
    out: Annotated[Path, typer.Option(help="Where to write the new weights, as .safetensors.", **PATH)],
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 5,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.001,
    batch: Annotated[int, typer.Option(help="Examples a step.")] = 64,
    optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = "adam",
    tolerance: Annotated[float | None, TOLERANCE] = None,
    labels: Annotated[bool, LABELS] = False,
    seed: Annotated[int, typer.Option(help="Fixes the order of the examples.")] = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Fine-tune a model on new data without leaving its certified region, so that every floor goes on holding."""
    from intercontinet.certificate import Certificate, verify
    from intercontinet.files import save_weights
    from intercontinet.question import Question
    from intercontinet.release import built, criterion_of, examples
    from intercontinet.release import update as train

    def listen(epoch: int, loss: float) -> None:
        typer.echo(f"epoch {epoch}/{epochs}: loss {loss:.4g}", err=True)

    with _reporting(as_json):
        _check_new(out)
        promise = Certificate.load(certificate)
        net = built(model, weights)
        verify(net, promise)
        new, criterion = examples(data), criterion_of(tolerance, labels)
        question = Question.of(net, new, new[1].device, None, criterion)
        before = float(question.right(net, {}).double().mean())
        train(
            net,
            new,
            promise.region,
            criterion,
            epochs=epochs,
            rate=rate,
            batch=batch,
            optimizer=optimizer,
            seed=seed,
            listen=listen,
        )
        verdict = verify(net, promise)
        after = float(question.right(net, {}).double().mean())
        save_weights(net, out)
    if as_json:
        floors = floors_of(verdict.floors)
        typer.echo(json.dumps({"weights": str(out), "before": before, "after": after, "floors": floors}))
        return
    typer.echo(f"New data: {before:.1%} right before, {after:.1%} after. Wrote {out}.\n{verdict}")


def attack(
    model: Annotated[str, MODEL],
    weights: Annotated[Path, WEIGHTS],
    data: Annotated[Path, DATA],
    certificate: Annotated[Path, typer.Option(help="The .icn file whose region to search.")],
    tolerance: Annotated[float | None, TOLERANCE] = None,
    labels: Annotated[bool, LABELS] = False,
    starts: Annotated[int, typer.Option(help="Number of starts.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps from each.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the worst weights here, as .safetensors.", **PATH)] = None,
    seed: Annotated[int, typer.Option(help="Makes the attack reproducible.")] = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Argue with a certificate: hunt for the worst weights in its region, and count what they get right."""
    from intercontinet.attack import attack as hunt
    from intercontinet.certificate import Certificate, verify
    from intercontinet.data import fingerprint
    from intercontinet.files import save_weights
    from intercontinet.release import built, criterion_of, examples

    with _reporting(as_json):
        if out is not None:
            _check_new(out)
        promise = Certificate.load(certificate)
        net = built(model, weights)
        verify(net, promise)
        x, y = examples(data)
        criterion, known = criterion_of(tolerance, labels), fingerprint(x, y)
        about = [floor for floor in promise.tasks if floor.data == known]
        floor = max(about, key=lambda floor: floor.certified, default=None)
        asked = "classification" if criterion is None else criterion.name
        if floor is not None and floor.criterion != asked:
            raise InvalidSetting(
                f"the floor of these examples speaks of {floor.criterion}, and the options of {asked}: give those that "
                "it was made with"
            )
        classes = None if floor is None else floor.classes
        region = promise.region
        worst = hunt(net, region, (x, y), seed, classes=classes, starts=starts, steps=steps, criterion=criterion)
        if out is not None:
            net.load_state_dict(worst.weights)
            save_weights(net, out)
    found = round(worst.accuracy * len(y))
    broken = floor is not None and found < floor.certified
    if as_json:
        known_floor = None if floor is None else floors_of([floor])[0]
        typer.echo(json.dumps({"right": found, "total": len(y), "floor": known_floor, "broken": broken}))
    else:
        typer.echo(f"The worst weights found get {found} of {len(y)} right ({worst.accuracy:.1%}).")
        if floor is None:
            typer.echo("No floor of the certificate speaks of these examples.")
        else:
            typer.echo(f"Certified: {floor}")
    if broken:
        typer.secho("An attack got below a certified floor: it does not hold. Please report this.", fg="red", err=True)
        raise typer.Exit(1)


def verify(
    weights: Annotated[Path, typer.Argument(help="A state dict as .safetensors.")],
    certificate: Annotated[Path, typer.Argument(help="The .icn file that makes the promise.")],
    model: Annotated[
        str | None,
        typer.Option(help="package.module:factory, to check the architecture too, of which weights alone do not tell."),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Check that weights lie in a certified region, so that every floor holds. Needs no data and no model code."""
    from intercontinet import record

    try:
        verdict = _verified(weights, certificate, model)
    except InterContiNetError as error:
        if as_json:
            typer.echo(_outcome(error))
        raise
    if as_json:
        typer.echo(_outcome(verdict))
        return
    headline, *_, last = str(verdict).splitlines()
    typer.echo(headline)
    for floor in verdict.floors:
        line = "".join(letter if letter.isprintable() else "?" for letter in str(floor))  # a file may hold anything
        typer.secho(f"  {line}", fg=None if floor.kept else "red")
    typer.echo(last if verdict.weights_alone else record.MODEL)


def _verified(weights: Path, certificate: Path, model: str | None) -> Verdict:
    if model is None:
        from intercontinet.stream import verify_files

        return verify_files(weights, certificate)
    from intercontinet.certificate import verify as verify_model
    from intercontinet.release import built

    return verify_model(built(model, weights), certificate)


def _outcome(found: Verdict | InterContiNetError) -> str:
    """What came of verifying, as JSON; the distance of a frozen tensor that changed is not known, and so null."""
    outcome: dict[str, object] = {"holds": False, "floors": [], "violations": [], "error": None}
    if isinstance(found, Violation):
        outcome["violations"] = [
            {"parameter": name, "excess": None if math.isinf(excess) else excess, "frozen": math.isinf(excess)}
            for name, excess in found.outside.items()
        ]
    elif isinstance(found, InterContiNetError):
        outcome["error"] = str(found)
    else:
        outcome["holds"] = True
        outcome["floors"] = floors_of(found.floors)
    return json.dumps(outcome)


@contextmanager
def _reporting(as_json: bool, left: Callable[[], str] = lambda: "nothing was written") -> Iterator[None]:
    """Errors for machines too, where they are asked for; and Ctrl-C, which is no violation."""
    try:
        yield
    except InterContiNetError as error:
        if as_json:
            typer.echo(json.dumps({"error": str(error)}))
        raise
    except KeyboardInterrupt:
        typer.secho(f"Interrupted: {left()}.", fg="red", err=True)
        raise typer.Exit(130) from None


def floors_of(floors: Any) -> list[dict[str, Any]]:
    """Floors for machines: what is recorded, and what follows from it."""
    extra = ("floor", "accuracy", "unseen_floor", "kept")
    return [asdict(floor) | {key: getattr(floor, key) for key in extra} for floor in floors]


def floor_table(floors: tuple[TaskFloor, ...]) -> Table:
    """Floors for people: certified, held-out, under attack, actual, and what cannot change."""
    from rich.table import Table

    table = Table("task", "accuracy", "certain", "unseen, at least", "under attack", "cannot change")
    for floor in floors:
        unseen = floor.unseen_floor
        table.add_row(
            floor.task,
            f"{floor.accuracy:.1%}",
            f"{floor.certified} of {floor.total} ({floor.floor:.1%})",
            "" if unseen is None else f"{int(1000 * unseen) / 10:.1f}%",
            "" if floor.attacked is None else f"{floor.attacked / floor.total:.1%}",
            "" if floor.stable is None else f"{floor.stable / floor.total:.1%}",
            style=None if floor.kept else "red",
        )
    return table


def _check_new(out: Path, way_out: str = "choose another --out, or remove it") -> None:
    """What others may rely on is not overwritten by a slip."""
    if out.exists():
        raise InvalidSetting(f"{out} is there already: {way_out}")
