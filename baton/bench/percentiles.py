"""Percentiles by nearest rank, so that each is a value that was measured."""

import math
from collections.abc import Sequence

SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p99.9": 0.999}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above; NaN of nothing."""
    return of_sorted(sorted(values), share)


def of_sorted(ordered: Sequence[float], share: float) -> float:
    """As `percentile`, of values in ascending order."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if len(ordered) else math.nan


def distribution(values: Sequence[float]) -> dict[str, float]:
    """The percentiles of `SHARES`, "mean" and "max"; NaN of nothing."""
    ordered = sorted(values)
    found = {name: of_sorted(ordered, share) for name, share in SHARES.items()}
    mean = math.fsum(ordered) / len(ordered) if ordered else math.nan
    return {**found, "mean": mean, "max": ordered[-1] if ordered else math.nan}
