"""`baton bench sweep`: one load at several rates on several configurations, and one report of all."""

import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from baton.bench.provenance import command_line
from baton.bench.report.sweep_report import HEADER, sweep_report, sweep_rows
from baton.bench.run_folder import REPORT
from baton.bench.sweep import (
    Cell,
    Configuration,
    Outcome,
    Plan,
    cell_seed,
    cells,
    keep_plan,
    outcomes,
    parse_configuration,
    parse_rates,
)
from baton.cli.signals import Stopped, stop_signals_raise
from baton.cli.stack_flags import parse_stack_flags
from baton.config import resolve
from baton.errors import BatonError, ErrorCode, invalid
from baton.local import LocalStack

_END_S = 30.0  # an interrupted load has so long to write what has come
_GIVEN = ("--target", "--rate", "--seed", "--prompt-seed", "--out", "--concurrency")  # by the sweep, to each cell


def sweep(
    rates: Annotated[str, typer.Option(help="Requests a second, as in 0.5,1,2.")],
    out: Annotated[Path, typer.Option(help="Folder of the sweep. One that has cells already is gone on with.")],
    config: Annotated[
        list[str] | None,
        typer.Option(help="NAME='FLAGS of baton up', or NAME=URL of an endpoint; can be repeated. Default: stack="),
    ] = None,
    seed: Annotated[int, typer.Option(help="Each rate has prompts of its own, each configuration the same ones.")] = 0,
    arguments: Annotated[list[str] | None, typer.Argument(help="Flags of `baton bench serve`, behind --.")] = None,
) -> None:
    """Run one load at each rate on each configuration; each stack is started once.

    Cells that are done are not measured again: the same command goes on after Ctrl-C, and one with more rates or
    configurations adds to what there is.
    """
    plan = Plan(arguments or [], seed)
    for word in plan.arguments:
        if word.partition("=")[0] in _GIVEN:
            raise invalid(f"got {word} behind --, expected flags other than {', '.join(_GIVEN)}: the sweep sets these")
    configurations = [parse_configuration(text) for text in config or ["stack="]]
    for configuration in configurations:
        if not configuration.is_endpoint:
            parse_stack_flags(shlex.split(configuration.text))
    all_cells = cells(out, configurations, parse_rates(rates))
    keep_plan(out, plan)
    console = Console()
    try:
        with stop_signals_raise():
            problems = _run(console, plan, configurations, all_cells)
    except (KeyboardInterrupt, Stopped):
        _report(console, outcomes(all_cells), out)
        console.print("Interrupted; the same command goes on.", style="bold yellow")
        raise typer.Exit(130) from None
    _report(console, outcomes(all_cells), out)
    if problems:
        raise BatonError(ErrorCode.INTERNAL, "\n".join(problems))


def _run(console: Console, plan: Plan, configurations: Sequence[Configuration], all_cells: Sequence[Cell]) -> list[str]:
    """Measures what is missing; what went wrong, a line a cell."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    problems = []
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("", total=len(all_cells))
        for configuration in configurations:
            own = [cell for cell in all_cells if cell.configuration == configuration.name]
            missing = [cell for cell in own if cell.run is None]
            bars.advance(bar, len(own) - len(missing))
            if not missing:
                continue
            bars.update(bar, description=f"{configuration.name}: starting")
            with _target(configuration) as target:
                for cell in missing:
                    bars.update(bar, description=cell.name)
                    if problem := _measure(plan, cell, target):
                        problems.append(problem)
                    bars.advance(bar)
    return problems


@contextlib.contextmanager
def _target(configuration: Configuration) -> Iterator[str]:
    """The address to measure; a stack runs as long as it is measured."""
    if configuration.is_endpoint:
        yield configuration.text
        return
    options, _ = resolve({"port": 0} | parse_stack_flags(shlex.split(configuration.text)))
    with LocalStack(options) as stack:
        yield f"grpc://{stack.gateway_address}"


def _measure(plan: Plan, cell: Cell, target: str) -> str | None:
    """Runs one cell; what went wrong. Its output goes to a file beside its folder."""
    flags = ["--target", target, "--rate", f"{cell.rate:g}", "--seed", str(plan.seed)]
    flags += ["--prompt-seed", str(cell_seed(plan, cell.rate))]
    command = [sys.executable, "-m", "baton.cli", "bench", "serve", *plan.arguments, *flags, "--out", str(cell.folder)]
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    log = cell.folder.with_name(f"{cell.folder.name}.log")
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True) as process:
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # once: in a session of its own it does not get the terminal's
            process.wait(_END_S)
            raise
    if code == 0:
        return None
    last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
    return f"{cell.name} ended with exit code {code}: {last} (all of it: {log})"


def _report(console: Console, found: Sequence[Outcome], out: Path) -> None:
    table = Table(caption="latencies in ms; good/s: requests a second within the SLO", caption_justify="left")
    for position, column in enumerate(HEADER):
        table.add_column(column, justify="right" if position else "left", overflow="fold")
    for row in sweep_rows(found):
        table.add_row(*row)
    console.print(table)
    (out / REPORT).write_text(sweep_report(found, command_line(), out))
    console.print(f"Wrote {out / REPORT}", highlight=False, markup=False)
