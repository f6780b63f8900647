"""What a load's rows say together: latencies, throughput, goodput, errors."""

import collections
import itertools
import math
from collections.abc import Sequence

import msgspec

from baton.bench.percentiles import distribution
from baton.bench.rows import UNFINISHED, RequestRow
from baton.bench.slo import Slo

LATENCIES = ("ttft", "tpot", "itl", "gap", "e2e")


class Summary(msgspec.Struct, frozen=True):
    """Latencies are of complete answers; rates are per second of `span_s`, which ends with the last answer."""

    num_sent: int
    num_complete: int
    num_unfinished: int  # ended by the load's own end
    errors: dict[str, int]  # failed requests by kind
    error_examples: dict[str, str]  # what the first of each kind said
    span_s: float
    requests_s: float  # complete answers
    input_tok_s: float
    output_tok_s: float
    cached_share: float  # of the input tokens; NaN where no server said so
    tokens_per_arrival: float
    latencies_ms: dict[str, dict[str, float]]  # by LATENCIES, then as `distribution`; itl over all gaps of all answers
    goodput_req_s: float | None = None  # None: no SLO was given
    good_share: float | None = None  # of all requests but unfinished ones


def summarize(rows: Sequence[RequestRow], slo: Slo | None) -> Summary:
    """Of any rows, none included."""
    complete = [row for row in rows if row.error is None]
    failed = [row for row in rows if row.error is not None and row.error not in UNFINISHED]
    span_s = max((row.end_s for row in rows), default=0.0)
    input_tokens, output_tokens = (
        sum(getattr(row, f"{side}_tokens") for row in complete) for side in ("input", "output")
    )
    cached = [row for row in complete if row.cached_tokens is not None]
    good = sum(slo.met(row) for row in complete) if slo else None
    examples: dict[str, str] = {}
    for row in failed:
        examples.setdefault(str(row.error), row.message or "")
    return Summary(
        num_sent=len(rows),
        num_complete=len(complete),
        num_unfinished=len(rows) - len(complete) - len(failed),
        errors=dict(collections.Counter(str(row.error) for row in failed)),
        error_examples=examples,
        span_s=span_s,
        requests_s=_ratio(len(complete), span_s),
        input_tok_s=_ratio(input_tokens, span_s),
        output_tok_s=_ratio(output_tokens, span_s),
        cached_share=_ratio(sum(row.cached_tokens or 0 for row in cached), sum(row.input_tokens for row in cached)),
        tokens_per_arrival=_ratio(output_tokens, sum(len(row.arrivals_ms) for row in complete)),
        latencies_ms={name: distribution(latencies_ms(complete, name)) for name in LATENCIES},
        goodput_req_s=None if good is None else _ratio(good, span_s),
        good_share=None if good is None else _ratio(good, len(complete) + len(failed)),
    )


def latencies_ms(complete: Sequence[RequestRow], name: str) -> list[float]:
    """All values of one of LATENCIES; requests without it (a single token has no gap) are left out."""
    if name == "itl":
        return list(itertools.chain.from_iterable(row.gaps_ms for row in complete))
    field = "max_gap_ms" if name == "gap" else f"{name}_ms"
    values = (getattr(row, field) for row in complete)
    return [value for value in values if not math.isnan(value)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
