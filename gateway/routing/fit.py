"""Seconds as a base and a slope, fitted online over a bounded window; never negative, never NaN."""

import math
from collections import deque
from typing import NamedTuple

_WINDOW = 64  # observations: minutes of a busy worker, so that it follows a worker that gets slower
_MIN_FOR_BASE = 8  # below this, or with all x alike, only the slope is fitted
_OUTLIER = 8.0  # an observation counts as at most so many times what was expected
_REFIT_EVERY = 4


class Line(NamedTuple):
    """base + slope * x."""

    base_s: float
    slope_s: float

    def at(self, x: float) -> float:
        """Seconds; `x` of 0 or more."""
        return self.base_s + self.slope_s * x


class LineFit:
    """The prior counts like one observation at `prior_x`, so it is forgotten as soon as there are a few real ones."""

    def __init__(self, prior: Line, prior_x: float) -> None:
        self._prior, self._prior_x = prior, prior_x
        self._seen: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self.num_added = 0
        self.line = prior

    def add(self, x: float, seconds: float) -> None:
        """One observation; what is not finite, or negative, is dropped."""
        if not (math.isfinite(x) and math.isfinite(seconds)) or x < 0 or seconds < 0:
            return
        if len(self._seen) >= _MIN_FOR_BASE:
            seconds = min(seconds, _OUTLIER * max(self.line.at(x), 1e-6))
        self._seen.append((x, seconds))
        self.num_added += 1
        if self.num_added <= _WINDOW // 4 or self.num_added % _REFIT_EVERY == 0:
            self.line = self._fitted()

    def _fitted(self) -> Line:
        return self._least_squares() or self._ratio()

    def _least_squares(self) -> Line | None:
        """None where the observations do not tell a base from a slope, or would make one of them negative."""
        n = len(self._seen)
        if n < _MIN_FOR_BASE:
            return None
        mean_x = sum(x for x, _ in self._seen) / n
        mean_y = sum(y for _, y in self._seen) / n
        spread = sum((x - mean_x) ** 2 for x, _ in self._seen)
        if spread <= 0.1 * n * mean_x**2:
            return None
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self._seen) / spread
        base = mean_y - slope * mean_x
        return Line(base, slope) if slope >= 0 and base >= 0 else None

    def _ratio(self) -> Line:
        """The prior's base, and what is left by the unit; with x of 0 all the time, a base alone."""
        sum_x = sum(x for x, _ in self._seen)
        if self._seen and sum_x == 0:
            return Line(sum(y for _, y in self._seen) / len(self._seen), self._prior.slope_s)
        base = min([self._prior.base_s, *(y for _, y in self._seen)])
        left = sum(max(0.0, y - base) for _, y in self._seen)
        slope = (left + self._prior.slope_s * self._prior_x) / (sum_x + self._prior_x)
        return Line(base, slope)
