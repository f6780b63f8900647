"""The workers that requests can go to, kept in step with the worker directory."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

from baton.directory.base import WorkerRecord
from baton.errors import BatonError
from baton.tls import Tls
from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.no_route import Gone
from gateway.routing.claim import Claim
from gateway.worker import Worker
from gateway.worker_directory import WorkerDirectory

logger = logging.getLogger(__name__)

Key = tuple[WorkerRef, str]  # incarnation and address

_GONE_KEPT_S = 60.0


class Pool:
    """Polls the directory. When that is down the workers known last stay in use, and when it has forgotten them, too.

    An emptied Redis knows no worker until each has sent its next heartbeat. So a worker that is not listed any more is
    asked whether it serves; one that unregisters says no before, and one that has died does not answer.
    """

    def __init__(self, directory: WorkerDirectory, limits: Limits, tls: Tls | None = None) -> None:
        self._directory = directory
        self._tls = tls
        self._limits = limits
        self._workers: dict[Key, Worker] = {}
        self._unlisted_since: dict[Key, float] = {}  # of workers that serve without being in the directory
        self._dropped: set[Worker] = set()  # gone from the directory, still in use by a request
        self._gone: deque[tuple[float, WorkerRecord]] = deque(maxlen=8)  # when, on the monotonic clock; newest last
        self._closing: set[asyncio.Task[None]] = set()
        self._refreshing = asyncio.Lock()
        self._poll_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Looks once, then keeps looking."""
        await self.refresh()
        self._poll_task = asyncio.create_task(self._poll(), name="worker pool")

    async def refresh(self) -> None:
        """Looks into the directory now."""
        async with self._refreshing:
            self._renew_channels()
            try:
                records = await self._directory.workers()
            except BatonError as error:
                # The reader reports outages in the log, once each.
                logger.debug("keeping %d workers: %s", len(self._workers), error)
                return
            await self._apply(records)

    def workers(self, role: Role) -> list[Worker]:
        """The registered workers of one role, by name."""
        found = (worker for worker in self._workers.values() if worker.record.role is role)
        return sorted(found, key=lambda worker: worker.name)

    @property
    def num_decoding(self) -> int:
        """Registered workers that decode, alone or aggregated."""
        return sum(worker.record.role is not Role.PREFILL for worker in self._workers.values())

    def recently_gone(self) -> list[Gone]:
        """Workers that have left within the last minute and not come back, the newest first."""
        now = time.monotonic()
        here = {ref.name for ref, _ in self._workers}
        return [
            Gone(record.worker.name, record.role, now - since)
            for since, record in reversed(self._gone)
            if now - since < _GONE_KEPT_S and record.worker.name not in here
        ]

    def max_model_len(self, model_limit: int) -> int:
        """What every registered worker can take, at most `model_limit`."""
        return min([model_limit, *(worker.record.max_model_len for worker in self._workers.values())])

    def count_in(self, worker: Worker) -> None:
        """A request goes to this worker: counts as load and keeps the channel open until `count_out`."""
        worker.in_flight += 1

    def count_out(self, worker: Worker) -> None:
        """The request, its clean-up included, is done with this worker."""
        worker.in_flight -= 1
        if worker in self._dropped and worker.in_flight == 0:
            self._close(worker)

    async def close(self) -> None:
        """Stops polling and closes all channels. Idempotent."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait([self._poll_task])
        for worker in [*self._workers.values(), *self._dropped]:
            self._close(worker)
        self._workers.clear()
        await asyncio.gather(*self._closing)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._limits.poll_interval_s)
            try:
                await self.refresh()
            except Exception:
                logger.exception("reading the worker directory failed; keeping the known workers")

    async def _apply(self, records: list[WorkerRecord]) -> None:
        found = {(record.worker, record.address): record for record in records}
        for key in found.keys() - self._workers.keys():
            logger.info("%s worker %s (%s) at %s", found[key].role, key[0].name, key[0].incarnation, key[1])
            self._workers[key] = Worker(found[key], self._tls)
        for key in found.keys() & self._workers.keys():
            self._workers[key].record = found[key]  # it may say by now that it drains
        unlisted = self._workers.keys() - found.keys()
        # Another life of the same worker, or another worker at its address.
        names, addresses = {ref.name for ref, _ in found}, {address for _, address in found}
        replaced = {key for key in unlisted if key[0].name in names or key[1] in addresses}
        self._drop(replaced)
        kept = await self._still_serving(unlisted - replaced)
        self._drop(unlisted - replaced - kept)
        for ref, _ in kept - self._unlisted_since.keys():
            message = "worker %s (%s) is not in the directory any more, but serves: kept for %g s"
            logger.warning(message, ref.name, ref.incarnation, self._limits.unlisted_s)
        now = time.monotonic()
        self._unlisted_since = {key: self._unlisted_since.get(key, now) for key in kept}

    def _renew_channels(self) -> None:
        """Certificates have changed: new requests get new channels, those under way keep the old ones."""
        generation = self._tls.generation if self._tls else 0
        for key, worker in list(self._workers.items()):
            if worker.tls_generation != generation:
                self._workers[key] = Worker(worker.record, self._tls)
                self._retire(worker)

    async def _still_serving(self, unlisted: set[Key]) -> set[Key]:
        """Those that say that they serve, for as long as the grace lasts."""
        oldest = time.monotonic() - self._limits.unlisted_s
        asked = [key for key in unlisted if self._unlisted_since.get(key, oldest) >= oldest]
        answers = await asyncio.gather(*(self._workers[key].serves(self._limits.health_timeout_s) for key in asked))
        return {key for key, serves in zip(asked, answers, strict=True) if serves}

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            worker = self._workers.pop(key)
            logger.info("worker %s (%s) is gone", worker.name, worker.ref.incarnation)
            self._gone.append((time.monotonic(), worker.record))
            self._retire(worker)

    def _retire(self, worker: Worker) -> None:
        """Closes its channel when nobody uses it any more."""
        self._dropped.add(worker)
        if worker.in_flight == 0:
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        self._dropped.discard(worker)
        task = asyncio.create_task(worker.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Hold:
    """The workers that one request occupies now."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers: tuple[Worker, ...] = ()
        self.claim: Claim | None = None  # of the routing policy, where it follows requests

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those occupied now."""
        return self._workers

    def switch(self, workers: Iterable[Worker], claim: Claim | None = None) -> None:
        """Occupies these instead of the former ones."""
        if self.claim is not None:
            self.claim.dropped()
        self.claim = claim
        former, self._workers = self._workers, tuple(workers)
        for worker in self._workers:
            self._pool.count_in(worker)
        for worker in former:
            self._pool.count_out(worker)

    def release(self) -> None:
        """Occupies none. Idempotent."""
        self.switch(())
