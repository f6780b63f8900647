"""The report of a sweep: one table and one set of charts for all its cells."""

import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from baton.bench.plot.axis import Axis
from baton.bench.plot.chart import Chart
from baton.bench.report.page import charts, heading, notes, page, paragraph, table
from baton.bench.run_folder import REPORT
from baton.bench.summary import Summary
from baton.bench.summary_rows import show
from baton.bench.sweep import Outcome

HEADER = (
    "configuration",
    "req/s",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "ITL p99",
    "gap p99",
    "tok/s",
    "good/s",
    "failed",
)
Figure = Callable[[Summary], float]


def sweep_rows(found: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row a cell, below `HEADER`."""
    rows = []
    for outcome in found:
        summary = outcome.summary
        latencies = [
            summary.latencies_ms[name][share]
            for name, share in (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("gap", "p99"))
        ]
        rows.append(
            (
                outcome.cell.configuration,
                f"{outcome.cell.rate:g}",
                *(show(value) for value in (*latencies, summary.output_tok_s)),
                "-" if summary.goodput_req_s is None else show(summary.goodput_req_s),
                str(sum(summary.errors.values())),
            )
        )
    return rows


def sweep_report(found: Sequence[Outcome], command: str, folder: Path) -> str:
    """One HTML document, to stand in `folder`; it names the cells' own reports, which stand below."""
    doubts = [f"{outcome.cell.name}: {note}" for outcome in found for note in outcome.notes]
    items = []
    for outcome in found:
        path = escape(os.path.relpath(outcome.cell.folder / REPORT, folder), quote=True)
        items.append(f"<a href='{path}'>{escape(outcome.cell.name)}</a>")
    return page(
        "Sweep",
        notes(doubts),
        table([("Command", command)]),
        heading("Cells"),
        table(sweep_rows(found), HEADER),
        paragraph(
            "Requests a second sent; latencies in ms, the gap being a request's longest between tokens; output tokens "
            "a second; requests a second within the SLO."
        ),
        heading("Charts"),
        charts(_charts(found)),
        heading("Each cell's own report"),
        f"<p>{', '.join(items)}</p>",
    )


def _charts(found: Sequence[Outcome]) -> list[str]:
    output = ("output tok/s", lambda outcome: outcome.summary.output_tok_s)
    rate = ("requests a second sent", lambda outcome: outcome.cell.rate)
    pairs = [
        ("TTFT p50 against throughput", output, "TTFT p50 in ms", lambda s: s.latencies_ms["ttft"]["p50"]),
        ("TTFT p99 against throughput", output, "TTFT p99 in ms", lambda s: s.latencies_ms["ttft"]["p99"]),
        ("ITL p99 against throughput", output, "ITL p99 in ms", lambda s: s.latencies_ms["itl"]["p99"]),
        ("Throughput by rate", rate, "output tok/s", lambda s: s.output_tok_s),
    ]
    if any(outcome.summary.goodput_req_s is not None for outcome in found):
        goodput: Figure = lambda s: float("nan") if s.goodput_req_s is None else s.goodput_req_s  # noqa: E731
        pairs.append(("Goodput by rate", rate, "requests a second within the SLO", goodput))
    return [_chart(title, found, x, label, figure) for title, x, label, figure in pairs]


def _chart(
    title: str, found: Sequence[Outcome], x: tuple[str, Callable[[Outcome], float]], label: str, figure: Figure
) -> str:
    across, along = x
    values = [(outcome.cell.configuration, along(outcome), figure(outcome.summary)) for outcome in found]
    chart = Chart(title, Axis(across, [value[1] for value in values]), Axis(label, [value[2] for value in values]))
    for name in dict.fromkeys(value[0] for value in values):
        own = sorted((one, other) for configuration, one, other in values if configuration == name)
        chart.line(name, own)
        chart.points(name, own, [f"{name}: {show(one)}, {show(other)}" for one, other in own])
    return chart.svg()
