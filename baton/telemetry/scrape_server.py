"""Serves a process's metrics over HTTP on a thread of its own, so that a busy event loop still answers a scrape."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Iterable

from prometheus_client import start_http_server
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from baton.errors import BatonError, ErrorCode
from baton.telemetry.exposition import Metrics

logger = logging.getLogger(__name__)

_REFRESH_TIMEOUT_S = 2.0


class ScrapeServer:
    """`/metrics` (and any other path) of one process."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Listens from now on; call on the event loop that the metrics' refreshes belong to. Port 0 takes a free one.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken or `host` is no address of this machine.
        """
        registry = _Refreshed(metrics, asyncio.get_running_loop())
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"cannot serve metrics on {host}:{port} ({error}); choose another --metrics-port, unless --host is no "
                "address of this machine",
            ) from error
        self.port = int(self._server.server_port)
        logger.info("metrics at http://%s:%d/metrics", host, self.port)

    async def close(self) -> None:
        """Stops listening. Idempotent."""
        await asyncio.to_thread(self._server.shutdown)  # waits for the thread, and may wait for a scrape
        self._server.server_close()


class _Refreshed(Collector):
    """A registry as a scraper sees it: refreshed on the event loop first."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop

    def restricted_registry(self, names: Iterable[str]) -> Collector:
        """For a scraper that asks for some names only; of figures that were fetched last."""
        return self._metrics.registry.restricted_registry(names)

    def collect(self) -> Iterable[Family]:
        refreshing = asyncio.run_coroutine_threadsafe(self._metrics.refresh(), self._loop)
        try:
            refreshing.result(_REFRESH_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            refreshing.cancel()  # what was fetched last is told, with its age
        return self._metrics.registry.collect()
