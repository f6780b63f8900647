"""`baton bench latency`, `throughput`, `kernel`, `transfer`, `startup` and `roofline`: parts without a load."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from baton.bench.offline import SUITES, result_entries, run_script, scripts
from baton.bench.roofline import draw, points
from baton.cli.bench.lines import result_rows

_HELP = {
    "latency": "Steps of the engine: decode by batch, prefill by tokens.",
    "throughput": "Many requests at once through an engine, without a network.",
    "kernel": "Parts of a step: attention, products, sampling, scheduling.",
    "transfer": "KV blocks from one pool to another.",
    "startup": "From a command to a stack that serves; loading of weights.",
}


def add_commands(app: typer.Typer) -> None:
    """One a suite, and the plot."""
    for suite, text in _HELP.items():
        epilog = f"Everything behind -- goes to the scripts: {_scripts_of(suite)}."
        app.command(suite, help=f"{text} Shows each figure beside what the hardware allows.", epilog=epilog)(_run_suite)
    app.command("roofline")(roofline)


def _scripts_of(suite: str) -> str:
    return ", ".join(f"benchmarks/{script.path}" for found in SUITES[suite].values() for script in found)


def _run_suite(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(help="For the scripts, behind --.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or gpu; default: cpu where it has this part.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing; show the results that are there.")] = False,
) -> None:
    found = scripts(context.info_name or "", device)
    if not show:
        for script in found:
            run_script(script, arguments or [])
    entries = [entry for script in found for entry in result_entries(script.results)]
    _print(Console(), entries)


def roofline(
    out: Annotated[Path, typer.Option(help="A name that ends in .png or .svg.")] = Path("roofline.svg"),
    results: Annotated[str, typer.Option(help="NAME of benchmarks/results/NAME.jsonl.")] = "gpu_steps",
) -> None:
    """Plot engine steps on a GPU under the roofline of its measured ceilings."""
    found, gpu = points(result_entries(results))
    draw(found, gpu, out)
    print(f"Wrote {out}: {len(found)} steps on one {gpu}")


def _print(console: Console, entries: list[dict[str, Any]]) -> None:
    table = Table()
    table.add_column("metric", no_wrap=True)
    table.add_column("of", overflow="fold")
    for column in ("value", "allowed", "reached", "baseline", "ratio"):
        table.add_column(column, justify="right", no_wrap=column != "baseline")
    for row in result_rows(entries):
        table.add_row(*row)
    console.print(table)
