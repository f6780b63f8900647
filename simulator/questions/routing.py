"""What prefix-aware routing is worth, by the number of workers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.bench.plot.axis import Axis
from baton.bench.plot.chart import Chart
from baton.errors import invalid
from simulator.ideal import best_hit_share
from simulator.questions import base
from simulator.routing import POLICIES
from simulator.study import Case


def routing(
    trace: Annotated[Path, base.TraceFlag],
    workers: Annotated[str, typer.Option(help="Numbers of workers, three of four of them for prefill.")] = "8,64",
    policies: Annotated[str, typer.Option(help=f"Of: {', '.join(POLICIES)}.")] = "round_robin,prefix",
    load: Annotated[float, typer.Option(help="Copies of the trace for each 16 workers.")] = 8.0,
    requests: Annotated[int, base.RequestsFlag] = 8000,
    costs: Annotated[Path, base.CostsFlag] = base.H200,
    processes: Annotated[int, base.ProcessesFlag] = 2,
    out: Annotated[Path | None, base.OutFlag] = None,
) -> None:
    """At one load for each worker: prefix hits beside the most that caches of this size could give, and TTFT.

    The most is what one cache of the size of all prefill workers' caches would hit, least recently used out first.
    """
    names = policies.split(",")
    for name in names:
        if name not in POLICIES:
            raise invalid(f"got {name!r} in --policies {policies}, expected {', '.join(POLICIES)}")
    found, counts = base.costs_of(costs), base.numbers("--workers", workers)
    if not load > 0:
        raise invalid(f"got --load {load:g}, expected copies above 0")
    cells = [(count, name) for count in counts for name in names]
    cases, best = [], {}
    for count in counts:
        prefill = max(1, min(count - 1, round(count * 0.75)))
        copies = max(1, round(load * count / 16))
        asked = base.trace_load(trace, max(1, round(requests * count / 16)))
        for name in names:
            sizes = base.cluster(found, prefill, count - prefill, policy=name)
            cases.append(Case(sizes, found, asked, copies))
        best[count] = best_hit_share(asked, copies, base.BLOCK_SIZE, prefill * sizes.num_blocks)
    console = Console()
    results = dict(zip(cells, base.ask(console, cases, processes), strict=True))
    rows, lines = [], []
    for (count, name), got in results.items():
        hits = got.prefix_hit_share
        share = hits / best[count] if best[count] else 0.0
        reference = results[count, names[0]].ms("ttft", "p99")
        rows.append(
            {
                "workers": str(count),
                "policy": name,
                "hits": f"{hits:.1%}",
                "of the most": f"{share:.0%}",
                "TTFT p50, ms": f"{got.ms('ttft', 'p50'):,.0f}",
                "p99": f"{got.ms('ttft', 'p99'):,.0f}",
                f"p99, {names[0]} is 1": f"{got.ms('ttft', 'p99') / reference:.2f}",
                "ITL p99, ms": f"{got.ms('itl', 'p99'):.1f}",
                "requests/s": f"{got.summary.requests_s:.1f}",
            }
        )
        params = {"workers": count, "policy": name, "trace": trace.name, "load": load}
        lines.append(base.line("sim_prefix_hit_share", found, params, hits, "ratio", floor=round(best[count], 4)))
        for percentile in ("p50", "p99"):
            more = params | {"percentile": percentile}
            lines.append(base.line("sim_ttft_ms", found, more, got.ms("ttft", percentile), "ms"))
    times = {name: [results[count, name].ms("ttft", "p99") for count in counts] for name in names}
    y = Axis("TTFT p99, ms", [value for values in times.values() for value in values], log=True)
    chart = Chart(f"Routing, {trace.stem}", Axis("workers", counts, log=True), y)
    for name, values in times.items():
        chart.line(name, list(zip(counts, values, strict=True)))
    base.answer(console, f"Routing of {trace.name} at {load:g} copies for 16 workers", rows, lines, chart, out)
