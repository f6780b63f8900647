"""A summary in words and numbers, for a terminal and for a report alike."""

import math

from baton.bench.percentiles import SHARES
from baton.bench.slo import Slo
from baton.bench.summary import Summary

LATENCY_HEADER = ("ms", *SHARES, "mean", "max")
_LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "gap": "worst gap of a request", "e2e": "end to end"}


def latency_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Rows below `LATENCY_HEADER`."""
    columns = LATENCY_HEADER[1:]
    return [
        (label, *(show(summary.latencies_ms[name][column]) for column in columns)) for name, label in _LABELS.items()
    ]


def summary_rows(summary: Summary, slo: Slo | None) -> list[tuple[str, str]]:
    """Everything but the latencies."""
    unfinished = f", {summary.num_unfinished} not finished" if summary.num_unfinished else ""
    failed = sum(summary.errors.values())
    rows = [
        (
            "Requests",
            f"{summary.num_complete} complete, {failed} failed{unfinished}; {show(summary.requests_s)} complete/s over "
            f"{summary.span_s:.1f} s",
        ),
        ("Tokens in", f"{show(summary.input_tok_s)} tok/s{_cached(summary)}"),
        ("Tokens out", f"{show(summary.output_tok_s)} tok/s, {show(summary.tokens_per_arrival)} a message"),
    ]
    if summary.goodput_req_s is not None and summary.good_share is not None:
        rows.append(
            ("Goodput", f"{show(summary.goodput_req_s)} req/s within {slo}: {summary.good_share:.1%} of requests")
        )
    rows += [
        (f"Failed: {kind}", f"{count}; first: {summary.error_examples[kind]}") for kind, count in summary.errors.items()
    ]
    return rows


def show(value: float) -> str:
    """Three significant digits at least; "-" where there is no value."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _cached(summary: Summary) -> str:
    return "" if math.isnan(summary.cached_share) else f", {summary.cached_share:.1%} of them cached"
