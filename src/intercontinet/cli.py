"""The command line. Exit codes: 0, it holds; 1, weights left their region; 2, bad input."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intercontinet import commands
from intercontinet.commands import PATH, console_for_pages
from intercontinet.errors import InvalidSetting, WriteError
from intercontinet.exits import exit_codes
from intercontinet.version import __version__

if TYPE_CHECKING:
    from rich.progress import TaskID

EXPLANATION = (
    "\n[bold]InterContiNet, enforced[/]: the paper's method on a small network that is trained, held to its promise. "
    "[bold]ExactInterContiNet[/]: one layer of sums above a frozen encoder, learned by counting in one pass, or, "
    "with a head for each task, by logistic regression.\n"
    "All columns but [bold]test[/] are shares of a task's training set, of which the floors speak. "
    "[bold]Learned[/]: accuracy just after learning the task; [bold]now[/], after the last task. "
    "[bold]Floor[/]: certified; no weights in the task's region, and so no later model, get fewer right. "
    "[bold]Attack[/]: the worst weights that gradient ascent found in that region; it can never be below the "
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
    out: Annotated[Path, typer.Option(help="Folder for certificates, weights, metrics and plots.", **PATH)] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Fixes weights, shuffling and attack.")] = 0,
) -> None:
    """Learn Split Digits with both learners in all three scenarios, attack them, and show what is certain."""
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from intercontinet.demo import METHODS, epochs_in_all, run_scenario
    from intercontinet.engine.loop import Progress as Heard
    from intercontinet.report.plot import draw, draw_room, save
    from intercontinet.report.record import METHODS as NAMES
    from intercontinet.report.table import table
    from intercontinet.tasks import SCENARIOS

    torch.set_num_threads(1)  # the nets are tiny: more threads only wait for each other
    console = console_for_pages()
    began = time.perf_counter()
    console.print("[bold]Two learners on Split Digits[/]: five tasks of two digits, learned one after another.\n")
    columns = (
        TextColumn("{task.description:<31}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    work = [(scenario, method) for scenario in SCENARIOS for method in METHODS]
    results = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        rows = [
            bars.add_task(f"{scenario} {NAMES[method]}", total=epochs_in_all(method), start=False, note="waiting")
            for scenario, method in work
        ]
        for (scenario, method), row in zip(work, rows, strict=True):
            bars.start_task(row)

            def listen(heard: Heard, row: TaskID = row, label: str = f"{scenario}, {NAMES[method]}") -> None:
                certain = f", certain {heard.mean(0):.0%}" if len(heard.statistics[0]) > 1 else ""
                note = f"digits {heard.task}  {heard.phase:<8} {heard.epoch}/{heard.epochs}"
                note += f"  accuracy {heard.mean(-1):.0%}{certain}"
                bars.update(row, advance=1, note=note)
                if not console.is_terminal and heard.epoch == heard.epochs:
                    console.print(f"{label}: {note}", highlight=False)

            try:
                results.append(run_scenario(scenario, method, out / scenario / method, seed, listen))
            except KeyboardInterrupt:
                bars.stop()
                done = ", ".join(f"{result.scenario}/{result.method}" for result in results) or "none"
                console.print(f"[red]Interrupted.[/] Complete in {out}: {done}.")
                raise typer.Exit(130) from None
            bars.update(row, note="done")
    for scenario in SCENARIOS:
        console.print()
        console.print(table([result for result in results if result.scenario == scenario]))
    save(draw(results, "What two learners keep of Split Digits, and what they still learn"), out / "demo")
    paper = [result for result in results if result.method == "intercontinet"]
    save(draw_room(paper, "Room that InterContiNet, enforced, has left"), out / "room")
    console.print(EXPLANATION)
    console.print(f"\nDone in {time.perf_counter() - began:.0f} s. Look at [bold]{out}/demo.png[/]. Then try:")
    for line in (
        f"intercontinet verify {out}/class/exact/model.safetensors {out}/class/exact/model.icn",
        f"intercontinet verify {out}/class/exact/after-first-task.safetensors {out}/class/exact/model.icn   (refused)",
        "intercontinet demo --seed 1 --out runs/demo-1",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


@app.command()
def run(
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar-10, cifar-100, permuted-mnist, rotated-mnist, "
            "or an .npz file or a folder of images; digits by default."
        ),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="task, domain or class; task by default.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="sgd, adam, l2, ewc, oewc, si, mas, lwf, offline, intercontinet (the default), "
            "intercontinet-published or exact."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds, counted from 0, one by default; or which: 3,7,9.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of each task's accuracy to keep for certain; the preset's by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over a task's data, all phases together; the preset's by default.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(help="How many tasks to cut the data into; two classes each by default, five in CIFAR-100."),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(help="alexnet, mlp with its hidden widths: mlp-400-400, or an encoder; the preset's by default."),
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment", help="Flip and crop training images at random; the preset's by default."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any other setting of the method, NAME=VALUE (docs/runs.md lists them); may be repeated."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with these options; flags override it.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto (the default: a GPU where there is one), cpu or cuda.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run; runs/DATASET-SCENARIO-METHOD by default.", **PATH)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
) -> None:
    """Train one method on one stream of tasks, with any number of seeds side by side."""

    from intercontinet.report.live import Live
    from intercontinet.study import folder
    from intercontinet.study.command import asked, epochs_of, outcome
    from intercontinet.study.run import Run

    flags = {"dataset": dataset, "scenario": scenario, "method": method, "seeds": seeds, "keep": keep}
    flags |= {"epochs": epochs, "tasks": tasks, "net": net, "device": device, "out": None if out is None else str(out)}
    flags |= {"augment": augment}
    wanted = asked(flags, setting or [], config, resume)
    console = console_for_pages()
    live = Live(console)
    for note in wanted.notes:
        live.say(note)
    work = Run(wanted.config, wanted.device, live.say)  # before the folder is made: a slip leaves none behind
    with folder.held(wanted.out), live:
        if resume:
            state = folder.resume(wanted.out, work)
        else:
            state = None
            folder.start(wanted.out, work)
        state = work.begin() if state is None else state
        label = f"{wanted.config.dataset}/{wanted.config.scenario}/{wanted.config.method}"
        listen = live.listener(label, work.lessons, epochs_of(wanted.config), state.done)
        if resume and not state.done:
            live.say("No task was learned yet, or its checkpoint is gone: starting with the first one")
        try:
            folder.export(wanted.out, work, state)
            while state.done < work.lessons:
                learned = work.advance(state, listen)
                folder.leave(wanted.out, work, learned)
                state = learned
        except WriteError as error:
            kept = f"at least {state.done} of {work.lessons} task(s) are kept"
            raise WriteError(f"{error}. Once that is mended, --resume goes on: {kept}") from error
        except KeyboardInterrupt:
            live.say(
                f"Interrupted after {state.done} of {work.lessons} task(s): go on with the same command and --resume"
            )
            raise typer.Exit(130) from None
    console.print(outcome(work.summary(state)))
    console.out(f"Left in {wanted.out}. Look at it with: intercontinet report {wanted.out}", highlight=False)


@app.command()
def reproduce(
    study: Annotated[
        str, typer.Argument(help="table1 to 3, figure3, figure4, guarantee, trials, tradeoff; or docs, for docs/.")
    ],
    seeds: Annotated[
        int | None, typer.Option(help="Seeds a cell should have; the study's own number by default.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over a task's data; by default as in docs/results.md, mostly the paper's."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only cells of this name: class/ewc, domain, mas, mnist; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="The results store: cells found there are not run again.", **PATH)] = Path(
        "results"
    ),
    docs: Annotated[
        Path | None,
        typer.Option(
            help="Where figures, and with 'docs' the results page, are written: docs, or for figures another --out.",
            **PATH,
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing, and draw nothing: show what the store holds.")
    ] = False,
) -> None:
    """Run a table or figure cell by cell, and set ours beside the paper's."""

    from intercontinet.report.live import Live
    from intercontinet.study import folder
    from intercontinet.study.command import epochs_of, present
    from intercontinet.study.document import write_document
    from intercontinet.study.machine import chosen_device
    from intercontinet.study.reproduce import steps, work_through
    from intercontinet.study.studies import chosen

    console = console_for_pages()
    if docs is None:  # what another store holds must not take the place of what ours does
        docs = Path("docs") if study == "docs" or out.resolve() == Path("results").resolve() else out
    if study == "docs":
        given = {"--only": bool(only), "--seeds": seeds is not None, "--epochs": epochs is not None, "--show": show}
        if odd := [flag for flag, there in given.items() if there]:
            raise InvalidSetting(
                f"reproduce docs takes no {' and no '.join(odd)}: it runs nothing and writes {docs} from all that the "
                "store holds. Leave that out, or name a study"
            )
        write_document(out, docs)
        console.out(f"Wrote {docs}/results.md and its figures.", highlight=False)
        return
    names = only or ()
    chosen(study, names)
    todo = [] if show else steps(study, out, seeds, epochs, names)
    began = time.perf_counter()
    if todo:
        chosen_device(device)  # before the folder is made: a slip leaves none behind
        with folder.held(out / study), Live(console) as live:
            try:
                for path in work_through(
                    study,
                    todo,
                    out,
                    device,
                    live.say,
                    lambda step, work: live.listener(str(step.plan.key), work.lessons, epochs_of(step.config)),
                ):
                    console.out(f"{time.perf_counter() - began:6.1f} s  {path}", highlight=False)
            except KeyboardInterrupt:
                live.say("Interrupted: cells that are done are in the store, and the same command goes on.")
                raise typer.Exit(130) from None
        console.print(f"{len(todo)} cell(s) in {time.perf_counter() - began:.1f} s.", highlight=False)
    present(study, out, docs, console, names if show else (), draw=not show)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or one that holds several runs or records.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; FOLDER/report.html by default.", **PATH)] = None,
) -> None:
    """Make one self-contained HTML page of a run or a study."""
    from intercontinet.report.page import write_page

    typer.echo(f"Wrote {write_page(folder, out)}")


data = typer.Typer(no_args_is_help=True, help="The data sets: which there are, and fetching them.")
app.add_typer(data, name="data")


@data.command("list")
def data_list() -> None:
    """Show the data sets, and whether they are here."""

    from intercontinet.report.table import data_table
    from intercontinet.tasks import data_folder, describe_sets

    console = console_for_pages()
    console.print(data_table(describe_sets()))
    console.out(
        f"They are kept in {data_folder()}; INTERCONTINET_DATA names another folder. Always here: digits, which comes "
        "with scikit-learn. Made from mnist: permuted-mnist, rotated-mnist.",
        highlight=False,
    )


@data.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(help="mnist, fashion-mnist, cifar-10, cifar-100, or all.")],
) -> None:
    """Download data sets from their official mirrors, check them, and unpack them."""
    from intercontinet.tasks import IMAGE_SETS, download, image_set

    for name in IMAGE_SETS if "all" in names else names:
        where = download(name)
        image_set(name)  # reads everything once, so that a damaged file is found now
        typer.echo(f"{name}: {where}")


@app.command()
def bench(
    rounds: Annotated[int, typer.Option(help="How often everything is measured in turn; medians are taken.")] = 15,
    convolutional: Annotated[
        bool, typer.Option("--convolutional", help="Measure a small convolutional net too, and several seeds of it.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Time 100 tasks of permuted MNIST, and count what the learner holds.")
    ] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Time five seeds of Split MNIST, and all of Table 1; meant for a GPU.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Time one task of Split MNIST: the exact learner beside the paper's.")
    ] = False,
    device: Annotated[str, typer.Option(help="For all but steps: auto, cpu or cuda.")] = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Measure steps and certification as multiples of a plain PyTorch step of the same net, in one run."""
    import json

    from intercontinet.files import check_writable, write_atomically
    from intercontinet.study.bench import device_for_tables, measured
    from intercontinet.study.machine import chosen_device

    if json_file is not None:
        check_writable(json_file, "--json")
    at = chosen_device(device)
    tables_on = device_for_tables(device) if tables else None
    places = (at if stream else None, tables_on, at if exact else None)
    figures = measured(rounds, typer.echo, at if convolutional else None, *places)
    if json_file is not None:
        write_atomically(json_file, (json.dumps(figures, indent=1) + "\n").encode())
        typer.echo(f"Wrote {json_file}")


app.command()(commands.protect)
app.command()(commands.update)
app.command()(commands.attack)
app.command()(commands.verify)


def main() -> None:
    """Run the command line, turning this package's errors into exit codes."""
    with exit_codes():
        app()
