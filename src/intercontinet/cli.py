"""The command line. Exit codes: 0, it holds; 1, weights left their region; 2, bad input."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intercontinet.errors import InterContiNetError, Violation
from intercontinet.version import __version__

if TYPE_CHECKING:
    from rich.progress import TaskID

EXPLANATION = (
    "\nAll but the last column are shares of a task's training set, of which the floors speak. "
    "[bold]Certified floor[/]: no weights in the task's region, and so no later model, get fewer right. "
    "[bold]Under attack[/]: the worst weights that gradient ascent found in that region; it can never be below the "
    "floor. In [yellow]yellow[/]: hardly learned."
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Continual learning with proofs.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intercontinet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Continual learning with proofs."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for certificates, weights, metrics and plot.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Fixes weights, shuffling and attack.")] = 0,
) -> None:
    """Learn Split Digits in all three scenarios, attack what was learned, and show what is certain."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from intercontinet.demo import epochs_in_all, run_scenario
    from intercontinet.engine.loop import Progress as Heard
    from intercontinet.report.plot import draw, save
    from intercontinet.report.table import table
    from intercontinet.tasks import SCENARIOS

    torch.set_num_threads(1)  # the nets are tiny: more threads only wait for each other
    console = Console()
    began = time.perf_counter()
    console.print("[bold]InterContiNet on Split Digits[/]: five tasks of two digits, learned one after another.\n")
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    results = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        rows = {name: bars.add_task(name, total=epochs_in_all(), start=False, note="waiting") for name in SCENARIOS}
        for scenario, row in rows.items():
            bars.start_task(row)

            def listen(heard: Heard, row: TaskID = row, scenario: str = scenario) -> None:
                certain = f", certain {heard.mean(0):.0%}" if heard.phase == "radii" else ""
                note = f"digits {heard.task}  {heard.phase:<7} {heard.epoch}/{heard.epochs}"
                note += f"  accuracy {heard.mean(-1):.0%}{certain}"
                bars.update(row, advance=1, note=note)
                if not console.is_terminal and heard.epoch == heard.epochs:
                    console.print(f"{scenario}: {note}", highlight=False)

            try:
                results.append(run_scenario(scenario, out / scenario, seed, listen))
            except KeyboardInterrupt:
                bars.stop()
                done = ", ".join(result.scenario for result in results) or "none"
                console.print(f"[red]Interrupted.[/] Scenarios that are complete in {out}: {done}.")
                raise typer.Exit(130) from None
            bars.update(row, note="done")
    for result in results:
        console.print()
        console.print(table(result))
    save(draw(results, "What InterContiNet keeps of Split Digits, and what it still learns"), out / "demo")
    console.print(EXPLANATION)
    console.print(f"\nDone in {time.perf_counter() - began:.0f} s. Look at [bold]{out}/demo.png[/]. Then try:")
    for line in (
        f"intercontinet verify {out}/domain/model.safetensors {out}/domain/model.icn",
        f"intercontinet verify {out}/domain/after-first-task.safetensors {out}/domain/model.icn   (refused)",
        "intercontinet demo --seed 1 --out runs/demo-1",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


@app.command()
def verify(
    weights: Annotated[Path, typer.Argument(help="A state dict as .safetensors.")],
    certificate: Annotated[Path, typer.Argument(help="The .icn file that makes the promise.")],
) -> None:
    """Check that weights lie in a certified region, so that every floor holds. Needs no data and no model code."""
    from intercontinet.certificate import Certificate
    from intercontinet.certificate import verify as check
    from intercontinet.files import load_weights

    verdict = check(load_weights(weights), Certificate.load(certificate))
    headline, *lines = str(verdict).splitlines()
    typer.echo(headline)
    for line, floor in zip(lines, verdict.floors, strict=True):
        typer.secho(line, fg=None if floor.kept else "red")
    typer.echo("Checked: names, shapes and edges. Which layers they belong to, weights alone cannot tell.")


def main() -> None:
    """Run the command line, turning this package's errors into exit codes."""
    try:
        app()
    except Violation as error:
        typer.secho(f"violation: {error}", fg="red", err=True)
        sys.exit(1)
    except InterContiNetError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
