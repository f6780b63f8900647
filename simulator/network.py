"""KV on the way between workers: each write has a latency, and shares its two workers' bandwidth with others."""

from collections.abc import Callable

from simulator.costs import LinkCosts
from simulator.events import EventLoop


class Link:
    """One worker's way out or in: writes follow one another."""

    __slots__ = ("free_s",)

    def __init__(self) -> None:
        self.free_s = 0.0  # when all that was posted has passed


class Network:
    """Writes that share a link follow one another in the order of their posts.

    So the last of several takes as long as with fair shares, the others are earlier.
    """

    def __init__(self, loop: EventLoop, costs: LinkCosts) -> None:
        self._loop, self._costs = loop, costs
        self.num_bytes = 0.0
        self.num_writes = 0

    def write(self, source: Link, target: Link, num_bytes: float, done: Callable[[], None]) -> None:
        """Calls `done` when the last byte is there."""
        start_s = max(self._loop.now_s, source.free_s, target.free_s)
        end_s = start_s + num_bytes / self._costs.bytes_s
        source.free_s = target.free_s = end_s
        self.num_bytes += num_bytes
        self.num_writes += 1
        self._loop.at(end_s + self._costs.latency_s, done)
