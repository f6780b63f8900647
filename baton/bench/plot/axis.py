"""One axis of a chart: where a value stands, and which values get a tick."""

import math
from collections.abc import Sequence

_STEPS = (1, 2, 5, 10)
_TICKS = 6


class Axis:
    """Linear or logarithmic, from the lowest to the highest of the values it is made of."""

    def __init__(self, label: str, values: Sequence[float], log: bool = False, from_zero: bool = True) -> None:
        """`from_zero`: a linear axis begins at 0. What is not finite, or has no logarithm, counts not."""
        self.label, self.log = label, log
        fit = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(fit), max(fit)) if fit else (1.0, 10.0)
        if log:
            self.low, self.high = low / 1.15, high * 1.15
        else:
            self.low = min(0.0, low) if from_zero else low
            self.high = high if high > self.low else self.low + 1
            self.high += (self.high - self.low) * 0.04

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies beyond is put on the end."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))

    def ticks(self) -> list[float]:
        """Round values within the axis, in order."""
        return self._log_ticks() if self.log else self._linear_ticks()

    def _linear_ticks(self) -> list[float]:
        raw = (self.high - self.low) / _TICKS
        unit = 10 ** math.floor(math.log10(raw))
        step = next(factor * unit for factor in _STEPS if factor * unit >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1,) if len(decades) > _TICKS else (1, 2, 5)
        values = [factor * 10.0**decade for decade in decades for factor in factors]
        return [value for value in values if self.low <= value <= self.high]


def tick_text(value: float) -> str:
    """Short: 0.5, 20, 1.5k, 3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:.3g}"
