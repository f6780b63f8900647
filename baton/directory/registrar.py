"""A worker's entry in the directory, kept true: its record under a lease and the block hashes it owns."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from baton import faults
from baton.directory.base import WorkerRecord, blocks_key, events_key, sequence_key, worker_key, workers_key
from baton.directory.connection import FAILURES, OutageLog, connect, is_wrong_type, raise_first
from baton.directory.events import FIELD, MAX_EVENTS, BlockEvent, changes_of, encode, net_change
from baton.directory.metrics import RedisMetrics
from baton.faults import Point
from baton.telemetry.exposition import Metrics

logger = logging.getLogger(__name__)

_MEMBERS_A_COMMAND = 4096
_CLOSE_TIMEOUT_S = 3.0
_EVENTS_LEASES = 12  # the stream outlives its workers by so many leases


class WorkerRegistrar:
    """Publishes one incarnation of one worker. Never fails or delays its caller, whatever Redis does.

    One background task does all writing. The owned hashes stay in memory too: after any failure, and whenever a
    heartbeat finds another number of hashes in Redis than here (a flush, a restart, an expiry), it writes all anew.
    """

    def __init__(
        self, redis_url: str, record: WorkerRecord, metrics: RedisMetrics | None = None, lease_s: float = 5.0
    ) -> None:
        """A worker that sends no heartbeat for `lease_s` is gone from the directory.

        Raises:
            BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
        """
        fingerprint, worker = record.model_fingerprint, record.worker
        self._redis = connect(redis_url)
        self._metrics = metrics or RedisMetrics(Metrics())
        self._outage = OutageLog(logger, "serving goes on; this worker is invisible to gateways that start meanwhile")
        self._worker = worker
        self._record = record
        self._record_json = msgspec.json.encode(record)
        self._written = {self._record_json}  # what Redis may hold of this incarnation
        self._workers_key = workers_key(fingerprint)
        self._worker_key = worker_key(fingerprint, worker.name)
        self._blocks_key = blocks_key(fingerprint, worker)
        self._sequence_key = sequence_key(fingerprint, worker)
        self._events_key = events_key(fingerprint)
        self._sequence = 0  # of the newest event that was sent, whether or not it has arrived
        self._lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        self._owned: set[bytes] = set()
        self._changes: deque[tuple[tuple[bytes, ...], tuple[bytes, ...]]] = deque()  # removed, stored
        self._behind_since_s: float | None = None  # when the oldest change came that is not in Redis
        self._rewrite_due = True
        self._beat_due = False  # before its time
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Registers, or logs that Redis is down, and keeps the entry alive from then on."""
        await self._beat()
        self._task = asyncio.create_task(self._run())

    def update_blocks(self, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Queues a change of the owned hashes. A hash in both counts as stored."""
        change = (tuple(removed), tuple(stored))
        self._owned.difference_update(change[0])
        self._owned.update(change[1])
        self._behind_since_s = self._behind_since_s or time.monotonic()
        if not self._rewrite_due:
            self._changes.append(change)
            self._wake.set()

    @property
    def lag_s(self) -> float:
        """Age of the oldest change that is not in Redis yet; 0 when all are."""
        return time.monotonic() - self._behind_since_s if self._behind_since_s else 0.0

    def announce_draining(self) -> None:
        """Has the record say so, at once if Redis answers. Idempotent."""
        self._record_json = msgspec.json.encode(msgspec.structs.replace(self._record, draining=True))
        self._written.add(self._record_json)
        self._beat_due = True
        self._wake.set()

    async def close(self) -> None:
        """Takes the worker out of the directory, if Redis answers. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._task:
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT_S)
            if not done:
                self._task.cancel()
        try:
            await self._unregister()
        except FAILURES as error:
            self._outage.failed(error)
        await self._redis.aclose()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        beat_s = self._lease_s / 3
        next_beat_s = loop.time() + beat_s
        while not self._closing:
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, next_beat_s - loop.time()))
            except TimeoutError:
                next_beat_s = loop.time() + beat_s
                await self._beat()
                continue
            self._wake.clear()
            if self._beat_due:
                self._beat_due = False
                await self._beat()
            else:
                await self._guarded(self._write_changes())

    async def _beat(self) -> None:
        await self._guarded(self._renew())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; a failure makes everything due again at the next heartbeat."""
        try:
            with self._metrics.round():
                await work
            if not self._changes and not self._rewrite_due:
                self._behind_since_s = None
        except FAILURES as error:
            self._outage.failed(error)
            self._rewrite_due = True
            self._changes.clear()
        except Exception:
            logger.exception("publishing worker %s failed; it is tried again at the next heartbeat", self._worker.name)
            self._rewrite_due = True
            self._changes.clear()

    async def _renew(self) -> None:
        """Renews the lease, and rewrites the hashes where Redis does not hold what it should."""
        faults.at(Point.DIRECTORY_WRITTEN)
        await self._write_changes()
        own, events = (self._sequence_key, self._sequence_key), (self._events_key, self._events_key)
        keys = (self._worker_key, self._workers_key, self._blocks_key, self._blocks_key, *own, *events)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(self._worker_key, self._record_json, px=self._lease_ms, get=True)
            pipe.sadd(self._workers_key, self._worker.name)
            pipe.pexpire(self._blocks_key, self._lease_ms)
            pipe.scard(self._blocks_key)
            pipe.pexpire(self._sequence_key, self._lease_ms)
            pipe.get(self._sequence_key)
            pipe.pexpire(self._events_key, _EVENTS_LEASES * self._lease_ms)
            pipe.xlen(self._events_key)
            num_expected = len(self._owned) if not self._changes else None
            answers = await pipe.execute(raise_on_error=False)
        self._outage.answered()
        if foreign := {key for key, answer in zip(keys, answers, strict=True) if is_wrong_type(answer)}:
            await self._remove_foreign(foreign)
            return
        raise_first(answers)
        previous, _, _, num_found, _, sequence, _, _ = answers
        self._warn_of_namesake(previous)
        lost = num_expected is not None and (num_found, sequence) != (num_expected, b"%d" % self._sequence)
        if self._rewrite_due or lost:
            await self._rewrite()

    async def _remove_foreign(self, keys: set[str]) -> None:
        """Makes room where something of another type than ours stands, and writes anew."""
        logger.warning("removed what is not ours from Redis: %s", ", ".join(sorted(keys)))
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(*keys)
            pipe.set(self._worker_key, self._record_json, px=self._lease_ms)
            pipe.sadd(self._workers_key, self._worker.name)
            await pipe.execute()
        await self._rewrite()

    async def _write_changes(self) -> None:
        """Writes what was queued so far, as one change of the set, and tells of it; all at once, in one round trip."""
        if self._rewrite_due or not self._changes:
            return
        removed, stored = net_change(self._changes)
        self._changes.clear()
        async with self._redis.pipeline(transaction=True) as pipe:
            for members in _chunks(tuple(removed)):
                pipe.srem(self._blocks_key, *members)
            for members in _chunks(tuple(stored)):
                pipe.sadd(self._blocks_key, *members)
            pipe.pexpire(self._blocks_key, self._lease_ms)
            for fields in changes_of(removed, stored):
                self._tell(pipe, *fields)
            await pipe.execute()

    def _tell(self, pipe: Any, removed: bytes = b"", stored: bytes = b"") -> None:
        """The next event. One that did not arrive leaves a gap in the numbers, which readers notice."""
        self._sequence += 1
        event = BlockEvent(self._worker.name, self._worker.incarnation, self._sequence, removed, stored)
        pipe.set(self._sequence_key, self._sequence, px=self._lease_ms)
        pipe.xadd(self._events_key, {FIELD: encode(event)}, maxlen=MAX_EVENTS, approximate=True)

    async def _rewrite(self) -> None:
        """Replaces the set of hashes at once, so that no reader sees a part of it."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(self._blocks_key)
            for members in _chunks(tuple(self._owned)):
                pipe.sadd(self._blocks_key, *members)
            pipe.pexpire(self._blocks_key, self._lease_ms)
            self._tell(pipe)
            self._changes.clear()
            self._rewrite_due = False
            await pipe.execute()

    async def _unregister(self) -> None:
        """Deletes the hashes; the record and the name only where no later incarnation has taken them over."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(self._blocks_key)
            pipe.delete(self._sequence_key)
            pipe.get(self._worker_key)
            _, _, current = await pipe.execute()
        if current not in self._written:
            return
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(self._worker_key)
            pipe.srem(self._workers_key, self._worker.name)
            await pipe.execute()

    def _warn_of_namesake(self, previous: bytes | None) -> None:
        if previous is not None and previous not in self._written:
            message = "replaced the record of another %s: an earlier life, or a second worker that needs a --name"
            logger.warning(message, self._worker.name)


def _chunks(members: tuple[bytes, ...]) -> Iterable[tuple[bytes, ...]]:
    return (members[i : i + _MEMBERS_A_COMMAND] for i in range(0, len(members), _MEMBERS_A_COMMAND))
