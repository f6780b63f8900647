"""How a process fares with Redis, as metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics


class IndexMetrics:
    """What a gateway knows of owned blocks, and how it came to know it."""

    def __init__(self, metrics: Metrics) -> None:
        self.blocks = metrics.gauge(declared.INDEX_BLOCKS)
        self.events = metrics.counter(declared.INDEX_EVENTS)
        self.resyncs = metrics.counter(declared.INDEX_RESYNCS)


class RedisMetrics:
    """One a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._up = metrics.gauge(declared.REDIS_UP)
        self._errors = metrics.counter(declared.REDIS_ERRORS)
        self._seconds = metrics.histogram(declared.REDIS_SECONDS)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around calls to Redis that succeed or fail together."""
        start_s = perf_counter()
        try:
            yield
        except Exception:
            self._errors.inc()
            self._up.set(0)
            raise
        self._up.set(1)
        self._seconds.observe(perf_counter() - start_s)
