"""The charts of one load: what was waited for, how often, and when."""

from collections.abc import Sequence

import numpy as np

from baton.bench.percentiles import percentile
from baton.bench.plot.axis import Axis
from baton.bench.plot.chart import Chart
from baton.bench.rows import RequestRow
from baton.bench.slo import Slo
from baton.bench.summary import latencies_ms
from baton.bench.windows import Windows

_BINS = 60
_WINDOWS = 120  # at most
_SCATTER = 4000  # dots at most, so that a report of a long load stays small


def load_charts(rows: Sequence[RequestRow], slo: Slo | None) -> list[str]:
    """As SVG; those without a value are left out."""
    complete = [row for row in rows if row.error is None]
    if not complete:
        return []
    limits = slo.limits_ms if slo else {}
    ttfts, itls = latencies_ms(complete, "ttft"), latencies_ms(complete, "itl")
    found = [
        _histogram("Time to first token", "TTFT in ms", ttfts, limits.get("ttft")),
        _histogram("Gaps between tokens (ITL)", "ITL in ms", itls, limits.get("itl")) if itls else "",
        _latency_against_throughput(complete),
        _over_time(complete),
        *_rates(rows),
    ]
    return [svg for svg in found if svg]


def _histogram(title: str, label: str, values: Sequence[float], limit: float | None) -> str:
    low, high = max(1e-3, min(values)), max(1e-3, *values)
    edges = np.geomspace(low, high * 1.001, _BINS + 1)
    heights, _ = np.histogram(np.maximum(values, low), edges)
    shares = [100 * float(height) / len(values) for height in heights]
    edge = [low, high] + ([limit] if limit else [])
    chart = Chart(title, Axis(label, edge, log=True), Axis("% of all", shares))
    chart.bars("measured", [float(value) for value in edges], shares)
    for share in (0.5, 0.99):
        chart.rule(f"p{share * 100:g}", percentile(values, share))
    if limit:
        chart.rule("SLO", limit)
    return chart.svg()


def _over_time(complete: Sequence[RequestRow]) -> str:
    drawn = complete[:: -(-len(complete) // _SCATTER)]
    values = [("TTFT", "ttft_ms"), ("worst gap", "max_gap_ms")]
    x = Axis("sent, in s since the start", [row.sent_s for row in drawn])
    heights = [getattr(row, field) for row in drawn for _, field in values]
    chart = Chart("Latency of each request", x, Axis("ms", heights, log=True))
    for name, field in values:
        points = [(row.sent_s, getattr(row, field)) for row in drawn]
        chart.points(name, points, [f"{row.name}: {name} {getattr(row, field):.1f} ms" for row in drawn])
    return chart.svg()


def _latency_against_throughput(complete: Sequence[RequestRow]) -> str:
    """Each window of the load is a point: what it brought out, and how long those who were sent in it waited."""
    windows = Windows(complete, _WINDOWS)
    tokens = windows.tokens_s(complete)
    sent: list[list[float]] = [[] for _ in range(windows.count)]
    for row in complete:
        sent[windows.number(row.sent_s)].append(row.ttft_ms)
    points = [(tokens[number], percentile(waits, 0.5)) for number, waits in enumerate(sent) if waits]
    x = Axis("output tok/s", [point[0] for point in points])
    y = Axis("TTFT p50 in ms", [point[1] for point in points])
    chart = Chart(f"Latency against throughput, in windows of {windows.width_s:g} s", x, y)
    chart.points("window", points, [f"{rate:.0f} tok/s, TTFT {ttft:.1f} ms" for rate, ttft in points])
    return chart.svg()


def _rates(rows: Sequence[RequestRow]) -> list[str]:
    windows = Windows(rows, _WINDOWS)
    tokens = windows.tokens_s(rows)
    x = Axis("s since the start", [0.0, windows.count * windows.width_s])
    throughput = Chart("Output over time", x, Axis("tok/s", tokens))
    throughput.line("tok/s", list(zip(windows.middles_s, tokens, strict=True)))
    under_way = [float(sum(row.sent_s <= middle_s < row.end_s for row in rows)) for middle_s in windows.middles_s]
    load = Chart("Requests under way", x, Axis("requests", under_way))
    load.line("under way", list(zip(windows.middles_s, under_way, strict=True)))
    return [throughput.svg(), load.svg()]
