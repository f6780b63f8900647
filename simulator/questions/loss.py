"""What losing many workers at once does to those who ask then."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.errors import invalid
from simulator.cluster import Failure
from simulator.questions import base
from simulator.study import Case


def loss(
    trace: Annotated[Path, base.TraceFlag],
    workers: Annotated[int, typer.Option(help="In all.")] = 64,
    prefill: Annotated[int, typer.Option(help="Of them.")] = 48,
    share: Annotated[float, typer.Option(help="Of each role's workers that die.")] = 0.1,
    at_s: Annotated[float, typer.Option(help="When.")] = 60.0,
    window_s: Annotated[float, typer.Option(help="Requests sent so long before and after are compared.")] = 30.0,
    loads: Annotated[str, typer.Option(help="Copies of the trace for each 16 workers.")] = "4,6,8",
    requests: Annotated[int, base.RequestsFlag] = 4000,
    costs: Annotated[Path, base.CostsFlag] = base.H200,
    processes: Annotated[int, base.ProcessesFlag] = 2,
    out: Annotated[Path | None, base.OutFlag] = None,
) -> None:
    """p99 of requests sent around the loss, beside those of the same load without one.

    Workers die at one moment and do not come back. What they worked on is tried again elsewhere, as the gateway does.
    """
    if not 0 < share < 1:
        raise invalid(f"got --share {share:g}, expected above 0 and below 1")
    if not (at_s > 0 and window_s > 0):
        raise invalid(f"got --at-s {at_s:g} and --window-s {window_s:g}, expected both above 0")
    if not 0 < prefill < workers:
        raise invalid(f"got --prefill {prefill} of --workers {workers}, expected at least one worker of each role")
    found = base.costs_of(costs)
    cells = [(number, died) for number in base.numbers("--loads", loads) for died in (False, True)]
    around = (max(0.0, at_s - window_s), at_s + window_s)
    cases = [
        Case(
            base.cluster(found, prefill, workers - prefill),
            found,
            base.trace_load(trace, max(1, round(requests * workers / 16))),
            max(1, round(number * workers / 16)),
            (Failure(at_s, share),) if died else (),
            sent_s=around,
        )
        for number, died in cells
    ]
    console = Console()
    results = dict(zip(cells, base.ask(console, cases, processes), strict=True))
    rows, lines = [], []
    for (number, died), got in results.items():
        rows.append(
            {
                "load": f"x{number}",
                "lost": f"{share:.0%}" if died else "none",
                "requests": str(got.summary.num_sent),
                "retried": str(got.num_retries),
                "failed": str(sum(got.summary.errors.values())),
                "TTFT p50, ms": f"{got.ms('ttft', 'p50'):,.0f}",
                "p99": f"{got.ms('ttft', 'p99'):,.0f}",
                "worst gap p99, ms": f"{got.ms('gap', 'p99'):,.0f}",
                "end to end p99, ms": f"{got.ms('e2e', 'p99'):,.0f}",
            }
        )
        params: dict[str, str | float] = {"trace": trace.name, "percentile": "p99", "workers": workers}
        params |= {"prefill": prefill, "lost": share if died else 0.0, "load": number}
        for latency, name in (("ttft", "ttft_ms"), ("gap", "maxgap_ms"), ("e2e", "e2e_ms")):
            lines.append(base.line(f"sim_{name}", found, params, got.ms(latency, "p99"), "ms"))
    title = f"{workers} workers, {share:.0%} of them lost at {at_s:g} s: requests sent {around[0]:g} to {around[1]:g} s"
    base.answer(console, title, rows, lines, None, out)
