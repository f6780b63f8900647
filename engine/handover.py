"""One request's hand-over on the sending side: which blocks have travelled, and what happens when the last one has."""

import time
from typing import NamedTuple

import msgspec

from baton import faults
from baton.convert import encode_kv_ready
from baton.errors import ErrorCode
from baton.faults import Point
from baton.types import ChunkDigest, Grant, KvReady, TransferStats
from baton_kernels.digest import kv_digest
from engine.context import EngineContext
from engine.messages import Event, Failed, Finished, WriteSpan
from engine.request import Request
from engine.scheduler.base import Scheduler
from engine.step_log import WriteRecord
from kv_transfer.base import KVSender, WriteDone


class LeaseOver(Exception):
    """The grant's lease has run out: nothing may be written any more."""


class _Write(NamedTuple):
    num_blocks: int
    posted_unix_ns: int
    posted_s: float  # on the monotonic clock


class HandOver:
    """Writes a request's blocks as they are completed, then KvReady behind the last one.

    The last write is posted only when all earlier ones have ended, because a notification is ordered behind the data of
    its own write alone.
    """

    def __init__(self, context: EngineContext, sender: KVSender, request: Request, grant: Grant, peer_id: str) -> None:
        self.request = request
        self.grant = grant
        self.peer_id = peer_id
        self.last_events: list[Event] = []  # set once, by whatever ends the request; sent when no write is under way
        self._context = context
        self._sender = sender
        self._next_block = grant.first_block
        self._digests: list[ChunkDigest] = []
        self._in_flight: dict[int, _Write] = {}
        self._computed_unix_ns = 0
        self._post_ns = 0
        self._transfer_us = 0
        self._first_token: int | None = None
        self._waits_since_s: float | None = None  # for decode's word that it listens
        self._drawn_tokens: tuple[int, ...] = ()  # that the receiver has not been told of, before the first one
        self.ready_sent = False

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return bool(self._in_flight)

    @property
    def hangs(self) -> bool:
        """Whether a write is under way for longer than any may take."""
        if not self._in_flight:
            return False
        oldest_s = min(write.posted_s for write in self._in_flight.values())
        return time.monotonic() >= oldest_s + self._limit_s

    @property
    def _limit_s(self) -> float:
        lease = self._context.config.lease
        return lease.longest_write_s + lease.clock_margin_s

    @property
    def waits(self) -> bool:
        """Whether something is ready to be posted, but decode cannot be told of it yet."""
        return self._waits_since_s is not None and not self.last_events

    @property
    def waits_too_long(self) -> bool:
        """Whether that takes longer than a write may."""
        return self.waits and time.monotonic() >= (self._waits_since_s or 0.0) + self._limit_s

    @property
    def has_more_to_write(self) -> bool:
        """Whether a write is still to be posted."""
        return not self.last_events and not self.ready_sent

    @property
    def write_ids(self) -> list[int]:
        """Writes under way."""
        return list(self._in_flight)

    def extend_lease(self, deadline_unix_ns: int) -> None:
        """An earlier end than that known changes nothing."""
        end = max(self.grant.lease_deadline_unix_ns, deadline_unix_ns)
        self.grant = msgspec.structs.replace(self.grant, lease_deadline_unix_ns=end)

    def send_chunk(self) -> None:
        """Posts the whole blocks that are computed and not sent; the prompt's last block is left to `send_last`.

        Raises:
            LeaseOver, BatonError: nothing was posted, and nothing can be.
        """
        block_size = self._context.config.cache.block_size
        last = (self.request.num_given_tokens - 1) // block_size
        ready = min(self.request.num_computed_tokens // block_size, last)
        if ready > self._next_block:
            self._post(ready, ready * block_size, None)

    def prompt_done(self, first_token: int) -> None:
        """The first token is drawn; what is left goes out as soon as no write is under way."""
        self._first_token = first_token
        self._computed_unix_ns = time.time_ns()
        self.send_last()

    def send_last(self) -> None:
        """Posts the rest with KvReady behind it, once the prompt is done and earlier writes have ended.

        Raises:
            LeaseOver, BatonError: nothing was posted, and nothing can be.
        """
        if self._first_token is None or self._in_flight or self.ready_sent:
            return
        self.ready_sent = self._post(
            self._context.blocks.blocks_for(self.request.num_given_tokens),
            self.request.num_given_tokens,
            self._first_token,
        )

    def send_waiting(self) -> None:
        """Tries again to post what waits. Raises as `send_last`."""
        if self._first_token is None:
            self.send_chunk()
        else:
            self.send_last()

    def _check_lease(self) -> None:
        if time.time_ns() >= self.grant.lease_deadline_unix_ns:
            raise LeaseOver

    def _post(self, end_block: int, end_token: int, first_token: int | None) -> bool:
        """Whether it was posted; if not, decode cannot be told of it yet."""
        self._check_lease()
        # Before the last look at the lease: so decode knows of every write that can follow, however late it comes.
        faults.at(Point.KV_BEGIN)
        if not self._sender.begin(self.peer_id, self.grant.grant_id):
            self._waits_since_s = self._waits_since_s or time.monotonic()
            return False
        self._waits_since_s = None
        start_token = self._next_block * self._context.config.cache.block_size
        source = self.request.block_ids[self._next_block : end_block]
        digest = kv_digest(self._context.runner.pool, source, start_token, end_token - start_token)
        self._digests.append(ChunkDigest(start_token, end_token - start_token, digest))
        first = self.grant.first_block
        target = self.grant.block_ids[self._next_block - first : end_block - first]
        posted_ns, posted_s = time.time_ns(), time.monotonic()
        notification = None if first_token is None else encode_kv_ready(self._kv_ready(first_token, posted_ns))
        self._check_lease()  # again: digests of long chunks take a while
        faults.at(Point.KV_POST)
        write_id = self._sender.post(self.peer_id, source, target, notification)
        faults.at(Point.KV_POSTED)
        self._post_ns += time.time_ns() - posted_ns
        self._in_flight[write_id] = _Write(len(source), posted_ns, posted_s)
        self._next_block = end_block
        return True

    def _kv_ready(self, first_token: int, sent_unix_ns: int) -> KvReady:
        return KvReady(
            grant_id=self.grant.grant_id,
            request_id=self.grant.request_id,
            epoch=self.grant.epoch,
            decode_incarnation=self.grant.decode.incarnation,
            prefill=self._context.config.worker,
            digests=tuple(self._digests),
            first_token=first_token,
            sampler_position=self.request.num_output_tokens,
            sent_unix_ns=sent_unix_ns,
            drawn_tokens=self._drawn_tokens,
        )

    def write_ended(self, done: WriteDone) -> None:
        """Takes a write that has ended, well or badly."""
        write = self._in_flight.pop(done.write_id)
        num_bytes = write.num_blocks * self._context.runner.layout.block_bytes
        end_ns = write.posted_unix_ns + done.transfer_us * 1000
        self._transfer_us += done.transfer_us
        self._context.counts.write(write.num_blocks, num_bytes, done.transfer_us, done.error is None)
        if self._context.step_log and done.error is None:
            self._context.step_log.add(WriteRecord(num_bytes, done.transfer_us))
        self.request.writes.append(WriteSpan(write.posted_unix_ns, end_ns, write.num_blocks, num_bytes))

    @property
    def block_ids(self) -> list[int]:
        """The blocks that it keeps."""
        return self.request.block_ids

    def leave(self, scheduler: Scheduler) -> None:
        """It is over: nothing more is to be computed for it."""
        scheduler.remove(self.request.key)

    def release(self) -> None:
        """Gives its blocks back; no write of it is under way."""
        self._context.blocks.release(self.request)

    def failed(self, message: str) -> list[Event]:
        """The last events when it cannot be done."""
        timeline = self.request.timeline(time.time_ns())
        return [Failed(*self.request.key, ErrorCode.UNAVAILABLE, message, timeline)]

    def finished(self) -> list[Event]:
        """The last events when all is written."""
        timeline, cached_tokens = self.request.timeline(time.time_ns()), self.request.num_cached_tokens
        return [Finished(*self.request.key, None, timeline, cached_tokens=cached_tokens, transfer=self.stats())]

    def stats(self) -> TransferStats:
        """What it cost; complete when all writes have ended."""
        writes = self.request.writes
        last_ns = max((write.done_unix_ns for write in writes), default=0)
        return TransferStats(
            blocks=sum(write.blocks for write in writes),
            bytes=sum(write.bytes for write in writes),
            writes=len(writes),
            post_us=self._post_ns // 1000,
            transfer_us=self._transfer_us,
            exposed_us=max(0, last_ns - self._computed_unix_ns) // 1000,
        )
