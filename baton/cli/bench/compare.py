"""`baton bench compare`: whether one run was better than another, or whether that cannot be told."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from baton.bench.compare import Comparison, Verdict
from baton.bench.compare import compare as compare_runs
from baton.bench.run_folder import read_run
from baton.bench.summary_rows import show
from baton.errors import invalid

_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.OPEN: ""}
_LEAST_RESAMPLINGS = 100


def compare(
    a: Annotated[Path, typer.Argument(help="A folder that `baton bench serve` wrote: what to compare with.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    resamplings: Annotated[int, typer.Option(help="Of the bootstrap.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="The same seed gives the same intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
) -> None:
    """Compare two runs: each figure of B as a ratio of A's, with its bootstrap interval, and a verdict.

    A verdict of better or worse needs the whole interval on one side of 1. The intervals say how far one run could have
    come out otherwise with other requests of its kind; they know nothing of differences from one run to the next.
    """
    if resamplings < _LEAST_RESAMPLINGS or not 0 < confidence < 1 or seed < 0:
        raise invalid(
            f"got --resamplings {resamplings}, --confidence {confidence:g} and --seed {seed}, expected at least "
            f"{_LEAST_RESAMPLINGS}, a share between 0 and 1, and a seed of 0 or more"
        )
    found = compare_runs(read_run(a), read_run(b), resamplings, confidence, seed)
    if as_json:
        print(json.dumps(_plain(found), indent=2))
        return
    console = Console()
    _print(console, found, confidence)


def _print(console: Console, found: Comparison, confidence: float) -> None:
    table = Table()
    for position, column in enumerate(("", "A", "B", "B / A", f"{confidence:.0%} interval", "B is")):
        table.add_column(column, justify="right" if 0 < position < 5 else "left")
    for finding in found.findings:
        ratio = finding.ratio
        table.add_row(
            finding.name,
            f"{show(ratio.a)} {finding.unit}",
            f"{show(ratio.b)} {finding.unit}",
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            f"[{style}]{finding.verdict}[/]" if (style := _STYLES[finding.verdict]) else str(finding.verdict),
        )
    console.print(table)
    for warning in found.warnings:
        console.print(warning, style="bold yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(found.verdict, style="bold", highlight=False, markup=False, soft_wrap=True)


def _plain(found: Comparison) -> dict[str, object]:
    return {
        "findings": [
            {
                "name": finding.name,
                "unit": finding.unit,
                "a": finding.ratio.a,
                "b": finding.ratio.b,
                "ratio": finding.ratio.value,
                "low": finding.ratio.low,
                "high": finding.ratio.high,
                "verdict": str(finding.verdict),
            }
            for finding in found.findings
        ],
        "warnings": found.warnings,
        "verdict": found.verdict,
    }
