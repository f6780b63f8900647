"""Follows the workers' stream of block events into an index in memory; what it has missed it reads from their sets."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from baton.directory.base import blocks_key, events_key, sequence_key
from baton.directory.connection import FAILURES, OutageLog, connect, is_wrong_type, raise_first, uncancelled
from baton.directory.events import FIELD, BlockEvent, decode, hashes_of
from baton.directory.index import MAX_HASHES, OwnerIndex
from baton.directory.metrics import IndexMetrics
from baton.telemetry.exposition import Metrics
from baton.types import WorkerRef

logger = logging.getLogger(__name__)

_BLOCK_MS = 300  # less than the socket's timeout
_READ_COUNT = 512
_PAUSE_AFTER = 64  # events, for others on the loop
_SCAN_COUNT = 2048
_CHECK_S = 1.0  # between comparisons of sequence numbers
_RETRY_S = 0.2
_STALE_S = 5.0  # without Redis the index counts for so long: a worker's lease
_START = b"0-0"


class BlockFollower:
    """One task does all the reading. `members` says whose events count; a worker that is none owns nothing.

    A worker's set is read when it is new, when an event's number is not the next one, when the worker says that it
    wrote all anew, and when its number in Redis is another one than here at two comparisons in a row.
    """

    def __init__(
        self,
        redis_url: str,
        model_fingerprint: str,
        metrics: IndexMetrics | None = None,
        max_hashes: int = MAX_HASHES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects at the first read.

        Raises:
            BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
        """
        self._redis = connect(redis_url)
        self._fingerprint = model_fingerprint
        self._metrics = metrics or IndexMetrics(Metrics())
        self._clock = clock
        self._outage = OutageLog(logger, f"owned blocks known so far count for {_STALE_S:g} s, then all are misses")
        self.index = OwnerIndex(max_hashes)
        self.num_resyncs = 0
        self._members: set[WorkerRef] = set()
        self._sequences: dict[WorkerRef, int] = {}  # of members that have been read
        self._suspects: dict[WorkerRef, tuple[int, int]] = {}  # number here and in Redis, as last compared
        self._unread: set[WorkerRef] = set()
        self._last_id = b""  # "": to be found out
        self._next_check_s = 0.0
        self._answered_s = -_STALE_S
        self._task: asyncio.Task[None] | None = None

    def members(self, workers: Collection[WorkerRef]) -> None:
        """All registered workers of now. Call on the event loop; the first call begins to follow."""
        for gone in self._members.difference(workers):
            self._forget(gone)
        self._unread |= set(workers) - self._members
        self._members = set(workers)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="block follower")

    @property
    def fresh(self) -> bool:
        """Whether Redis has answered lately."""
        return self._clock() - self._answered_s < _STALE_S

    def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        """For each worker how many of the leading `hashes` it owns; {} when Redis has not answered for long."""
        return self.index.longest_prefixes(hashes, workers) if self.fresh else {}

    async def close(self) -> None:
        """Stops following. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._redis.aclose()

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
                self._outage.answered()
                self._answered_s = self._clock()
                self._metrics.blocks.set(len(self.index))
            except FAILURES as error:
                self._outage.failed(error)
                self._next_check_s = 0.0
                await asyncio.sleep(_RETRY_S)
            except Exception:
                logger.exception("following the workers' block events failed; all of them are read anew")
                self._unread |= self._members
                await asyncio.sleep(_RETRY_S)

    async def _turn(self) -> None:
        if not self._last_id:
            # Before the sets are read, so that no event falls in between.
            self._last_id = await self._newest_id()
        for worker in sorted(self._unread & self._members, key=lambda worker: worker.name):
            await self._read_set(worker)
        self._unread &= self._members
        if self._clock() >= self._next_check_s:
            await self._compare()
            self._next_check_s = self._clock() + _CHECK_S
        await self._read_events()
        self.index.sweep()

    async def _read_events(self) -> None:
        reading = self._redis.xread({events_key(self._fingerprint): self._last_id}, _READ_COUNT, _BLOCK_MS)
        for _, entries in _streams(await uncancelled(reading)):
            for count, (number, fields) in enumerate(entries):
                if count % _PAUSE_AFTER == _PAUSE_AFTER - 1:
                    await asyncio.sleep(0)
                self._last_id = number
                event = decode(fields.get(FIELD, b"")) if fields else None
                if event is not None:
                    self._apply(event)

    def _apply(self, event: BlockEvent) -> None:
        worker = event.ref
        known = self._sequences.get(worker)
        if known is None or worker not in self._members or event.sequence <= known:
            return  # not here, or read with the set already
        self._metrics.events.inc()
        if event.sequence != known + 1 or event.rewritten:
            self._unread.add(worker)
            return
        self._sequences[worker] = event.sequence
        self.index.change(worker, hashes_of(event.removed), hashes_of(event.stored))

    async def _read_set(self, worker: WorkerRef) -> None:
        """The number first: events with a larger one follow, and doing again what the set has in it changes nothing."""
        self.num_resyncs += 1
        self._metrics.resyncs.inc()
        self.index.forget(worker)
        sequence = _number(await self._one("get", sequence_key(self._fingerprint, worker)))
        cursor = None
        while cursor != 0:
            key = blocks_key(self._fingerprint, worker)
            cursor, hashes = await self._one("sscan", key, cursor or 0, count=_SCAN_COUNT) or (0, ())
            self.index.change(worker, (), hashes)
        if worker in self._members:
            self._unread.discard(worker)
            self._sequences[worker] = sequence
        else:
            self._forget(worker)

    async def _one(self, command: str, *args: Any, **options: Any) -> Any:
        """The answer; None where something of another type stands, which its worker repairs."""
        async with self._redis.pipeline(transaction=False) as pipe:
            getattr(pipe, command)(*args, **options)
            (answer,) = await uncancelled(pipe.execute(raise_on_error=False))
        if is_wrong_type(answer):
            return None
        raise_first((answer,))
        return answer

    async def _compare(self) -> None:
        """Finds what events do not tell: a stream that was emptied or begins anew, and events lost with it."""
        members = sorted(self._sequences.keys() & self._members, key=lambda worker: worker.name)
        newest = await self._newest_id()
        if _order(newest) < _order(self._last_id):
            self._last_id = _START  # what is known already is passed over
        if not members:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for worker in members:
                pipe.get(sequence_key(self._fingerprint, worker))
            answers = await uncancelled(pipe.execute(raise_on_error=False))
        raise_first(answer for answer in answers if not is_wrong_type(answer))
        suspects = {}
        for worker, answer in zip(members, answers, strict=True):
            pair = self._sequences.get(worker, 0), -1 if is_wrong_type(answer) else _number(answer)
            if pair[0] == pair[1]:
                continue
            if self._suspects.get(worker) == pair:
                self._unread.add(worker)
            suspects[worker] = pair
        self._suspects = suspects

    async def _newest_id(self) -> bytes:
        entries = await self._one("xrevrange", events_key(self._fingerprint), count=1)
        return entries[0][0] if entries else _START

    def _forget(self, worker: WorkerRef) -> None:
        self.index.forget(worker)
        self._sequences.pop(worker, None)
        self._suspects.pop(worker, None)


def _streams(answer: Any) -> Any:
    """The answer of XREAD in RESP2 is a list of pairs, in RESP3 a map to lists with one list in them."""
    if isinstance(answer, dict):
        return [(name, entries[0] if entries else []) for name, entries in answer.items()]
    return answer or []


def _number(answer: Any) -> int:
    """Of a key that is not there, or that something else has written: none that a worker has used."""
    try:
        return int(answer)
    except (TypeError, ValueError):
        return 0


def _order(number: bytes) -> tuple[int, int]:
    first, _, second = (number or _START).partition(b"-")
    return int(first), int(second or 0)
