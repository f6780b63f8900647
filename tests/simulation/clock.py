"""Virtual time: an event loop that jumps to its next timer, and the process's clocks, which then say what it says."""

import asyncio
import selectors
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_EPOCH_NS = 1_800_000_000 * 10**9  # of the virtual clocks; any
_PATCHED = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter")


class Stuck(Exception):
    """Nothing is due, ever: whoever waits still waits in vain."""


class _NoFiles(selectors.BaseSelector):
    """Waits by moving the clock."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self._clock.now_s += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class Clock:
    """The virtual time, and how far the wall clock of whoever runs now is ahead of it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.skew_s = 0.0

    def unix_ns(self) -> int:
        return _EPOCH_NS + int((self.now_s + self.skew_s) * 1e9)

    def make_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_NoFiles(self))
        loop.time = lambda: self.now_s  # type: ignore[method-assign]
        loop._clock_resolution = 1e-9  # type: ignore[attr-defined]
        return loop

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All of the process's clocks are these; ids are counted, so that a schedule runs the same way each time."""
        saved = {name: getattr(time, name) for name in _PATCHED}
        uuid4, count = uuid.uuid4, iter(range(1, 2**62))
        time.time_ns = self.unix_ns
        time.time = lambda: self.unix_ns() / 1e9
        time.monotonic = time.perf_counter = lambda: self.now_s
        time.monotonic_ns = lambda: int(self.now_s * 1e9)
        uuid.uuid4 = lambda: uuid.UUID(int=next(count))
        try:
            yield
        finally:
            uuid.uuid4 = uuid4
            for name, function in saved.items():
                setattr(time, name, function)
