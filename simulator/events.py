"""Discrete events: a heap of moments, and a clock that jumps from one to the next."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class EventLoop:
    """Virtual time. Events of one moment happen in the order in which they were asked for, so runs can be repeated."""

    EPOCH_NS = 1_800_000_000 * 10**9  # of `now_ns`; any

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.num_events = 0

    def now_ns(self) -> int:
        """As `time.time_ns`."""
        return self.EPOCH_NS + int(self.now_s * 1e9)

    def clock(self) -> float:
        """As `time.monotonic`."""
        return self.now_s

    def at(self, moment_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        """Calls `happen(*arguments)` at that moment, which must not lie in the past."""
        heapq.heappush(self._heap, (moment_s, next(self._numbers), happen, arguments))

    def after(self, seconds: float, happen: Callable[..., None], *arguments: Any) -> None:
        """Calls `happen(*arguments)` so much later."""
        heapq.heappush(self._heap, (self.now_s + seconds, next(self._numbers), happen, arguments))

    def run(self, until_s: float = float("inf")) -> None:
        """Until nothing is left to happen, or up to a moment."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_s:
            self.now_s, _, happen, arguments = pop(heap)
            self.num_events += 1
            happen(*arguments)
