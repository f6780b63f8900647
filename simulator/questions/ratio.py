"""Which ratio of prefill to decode workers suits a trace."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.bench.plot.axis import Axis
from baton.bench.plot.chart import Chart
from baton.bench.slo import parse_slo
from baton.errors import invalid
from baton.types import Role
from simulator.questions import base
from simulator.study import Case

_GOOD = 0.9  # of all requests: a load that is carried
_SIXTEENTHS = (4, 6, 8, 9, 10, 11, 12, 13, 14)


def ratio(
    trace: Annotated[Path, base.TraceFlag],
    workers: Annotated[int, typer.Option(help="In all; a multiple of 16 gives round splits.")] = 16,
    loads: Annotated[str, typer.Option(help="Copies of the trace for each 16 workers, to be tried.")] = "4,6,8,10,12",
    slo: Annotated[str, base.SloFlag] = "ttft=3s,tpot=30ms",
    requests: Annotated[int, base.RequestsFlag] = 4000,
    costs: Annotated[Path, base.CostsFlag] = base.H200,
    processes: Annotated[int, base.ProcessesFlag] = 2,
    out: Annotated[Path | None, base.OutFlag] = None,
) -> None:
    """For each split of the workers, the goodput under rising loads, and the highest load that it carries.

    A load is carried when nine of ten requests are within the SLO.
    """
    if workers < 2:
        raise invalid(f"got --workers {workers}, expected at least 2: one of each role")
    found, objectives = base.costs_of(costs), parse_slo(slo)
    splits = sorted({min(workers - 1, max(1, round(workers * part / 16))) for part in _SIXTEENTHS})
    scale = workers / 16
    copies = [max(1, round(number * scale)) for number in base.numbers("--loads", loads)]
    load = base.trace_load(trace, max(1, round(requests * scale)))
    cells = [(prefill, number) for prefill in splits for number in copies]
    cases = [
        Case(base.cluster(found, prefill, workers - prefill), found, load, number, slo=objectives)
        for prefill, number in cells
    ]
    console = Console()
    results = dict(zip(cells, base.ask(console, cases, processes), strict=True))
    rows, lines = [], []
    for prefill in splits:
        own = {number: results[prefill, number] for number in copies}
        carried = [number for number, got in own.items() if (got.summary.good_share or 0.0) >= _GOOD]
        best = max(own.values(), key=lambda got: got.summary.goodput_req_s or 0.0)
        split = f"{prefill}:{workers - prefill}"
        row = {"prefill:decode": split}
        for number, got in own.items():
            row[f"x{number}"] = f"{got.summary.good_share or 0.0:.0%}"
        row["most good/s"] = f"{best.summary.goodput_req_s or 0.0:.1f}"
        row["busy"] = f"{best.busy(Role.PREFILL):.0%} {best.busy(Role.DECODE):.0%}"
        rows.append(row)
        params = {"workers": workers, "prefill": prefill, "slo": str(objectives), "trace": trace.name}
        lines.append(base.line("sim_goodput_req_s", found, params, best.summary.goodput_req_s or 0.0, "req/s"))
        lines.append(base.line("sim_carried_copies", found, params, max(carried, default=0), "copies of the trace"))
        for number, got in own.items():
            more = params | {"copies": number}
            lines.append(base.line("sim_slo_share", found, more, got.summary.good_share or 0.0, "ratio"))
    goodput = {number: [results[p, number].summary.goodput_req_s or 0.0 for p in splits] for number in copies}
    shares = [prefill / workers for prefill in splits]
    y = Axis("requests/s within the SLO", [value for values in goodput.values() for value in values])
    chart = Chart(f"Goodput of {workers} H200s", Axis("share of prefill workers", shares, from_zero=False), y)
    for number, values in goodput.items():
        chart.line(f"x{number}", list(zip(shares, values, strict=True)))
    title = f"{workers} workers: share of requests within {slo}, by copies of the trace at once"
    base.answer(console, title, rows, lines, chart, out)
    winner = max(splits, key=lambda p: max(goodput[number][splits.index(p)] for number in copies))
    console.print(f"Most goodput: {winner} prefill, {workers - winner} decode.", highlight=False)
