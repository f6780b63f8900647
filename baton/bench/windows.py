"""A load cut into windows of time: what came out in each."""

import math
from collections.abc import Callable, Sequence

from baton.bench.rows import RequestRow


class Windows:
    """Equal windows from the load's start to its last answer."""

    def __init__(self, rows: Sequence[RequestRow], most: int, least_s: float = 1.0) -> None:
        """At most `most` of them, of whole seconds; `least_s` or wider."""
        self._span_s = max((row.end_s for row in rows), default=0.0)
        self.width_s = max(least_s, float(math.ceil(self._span_s / most)))
        self.count = max(1, math.ceil(self._span_s / self.width_s))

    @property
    def middles_s(self) -> list[float]:
        """Since the start."""
        return [(number + 0.5) * self.width_s for number in range(self.count)]

    def number(self, moment_s: float) -> int:
        """The window of a moment."""
        return min(self.count - 1, max(0, int(moment_s / self.width_s)))

    def tokens_s(self, rows: Sequence[RequestRow]) -> list[float]:
        """Output tokens a second in each window, by when they came."""
        found = [0.0] * self.count
        for row in rows:
            each = row.output_tokens / max(1, len(row.arrivals_ms))
            for arrival_ms in row.arrivals_ms:
                found[self.number(row.sent_s + arrival_ms / 1e3)] += each
        return [tokens / self.width_s for tokens in found]

    def ends_s(self, rows: Sequence[RequestRow], counts: Callable[[RequestRow], bool]) -> list[float]:
        """Requests a second that count, in each window, by when they ended."""
        found = [0.0] * self.count
        for row in rows:
            found[self.number(row.end_s)] += counts(row)
        return [ended / self.width_s for ended in found]
