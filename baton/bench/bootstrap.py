"""Confidence intervals of a ratio of two measured figures, by resampling (Efron's percentile bootstrap)."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_MOST_VALUES = 200_000  # of one figure; more, such as gaps between tokens, are thinned evenly over their order


class Ratio(msgspec.Struct, frozen=True):
    """b over a, with the interval in which it lies at the given confidence."""

    a: float
    b: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """b over a."""
        return self.b / self.a


class Percentile:
    """A percentile of values that belong to groups, such as the gaps of a request; groups are drawn, not values.

    Values of one request depend on each other, so drawing them one by one would give intervals that are too narrow.
    """

    def __init__(self, groups: Sequence[Sequence[float]], share: float) -> None:
        sizes = [len(group) for group in groups]
        values = np.fromiter((value for group in groups for value in group), float, sum(sizes))
        owners = np.repeat(np.arange(len(groups)), sizes)
        order = np.argsort(values, kind="stable")[:: -(-max(1, len(values)) // _MOST_VALUES)]
        self._values, self._owners = values[order], owners[order]
        self._num_groups, self._share = len(groups), share

    def of(self, weights: NDArray[np.int64]) -> float:
        """Nearest rank, where each value counts as often as its group was drawn."""
        ranks = np.cumsum(weights[self._owners])
        if not len(ranks) or ranks[-1] == 0:
            return float("nan")
        place = int(np.searchsorted(ranks, self._share * ranks[-1], side="left"))
        return float(self._values[min(place, len(self._values) - 1)])

    def measured(self) -> float:
        """Of what was measured."""
        return self.of(np.ones(self._num_groups, np.int64))

    def draw(self, generator: np.random.Generator) -> float:
        """Of one resampling."""
        drawn = generator.integers(0, self._num_groups, self._num_groups)
        return self.of(np.bincount(drawn, minlength=self._num_groups))


class Mean:
    """The mean of values that are drawn one by one, such as the throughput of a load's seconds."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.asarray(values, float)

    def measured(self) -> float:
        """Of what was measured."""
        return float(self._values.mean()) if len(self._values) else float("nan")

    def draw(self, generator: np.random.Generator) -> float:
        """Of one resampling."""
        return float(generator.choice(self._values, len(self._values)).mean()) if len(self._values) else float("nan")


def ratio_interval(
    a: Percentile | Mean, b: Percentile | Mean, resamplings: int, confidence: float, seed: int
) -> Ratio | None:
    """Both sides are drawn independently. None where a side has no value, or is 0."""
    measured = a.measured(), b.measured()
    if not all(np.isfinite(value) and value > 0 for value in measured):
        return None
    generator = np.random.default_rng(seed)
    drawn = [(a.draw(generator), b.draw(generator)) for _ in range(resamplings)]
    ratios = [second / first for first, second in drawn if first > 0 and np.isfinite(second)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Ratio(*measured, float(low), float(high))
