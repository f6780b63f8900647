"""Grants on the decode side: blocks promised to a prefill worker, until its KV is verified or its lease is over."""

import dataclasses
import uuid
from typing import Protocol

import msgspec

from baton.errors import BatonError, ErrorCode
from baton.types import Grant, KvEndpoint, KvLayout, KvReady
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import Key, Request
from engine.scheduler.blocks import RequestBlocks

RETRY_AFTER_S = 0.2


class LaidOut(Protocol):
    """What has KV, or stands for it."""

    @property
    def layout(self) -> KvLayout:
        """Of one block."""
        ...


class GrantContext(Protocol):
    """What grants need of an `EngineContext`."""

    @property
    def config(self) -> EngineConfig:
        """The worker, its lease and its scheduler."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def pool(self) -> BlockPool:
        """All blocks."""
        ...

    @property
    def blocks(self) -> RequestBlocks:
        """The same, by request."""
        ...

    @property
    def runner(self) -> LaidOut:
        """Whose KV is granted."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class OpenGrant:
    """A grant whose KV has not been accepted yet. `request.block_ids` holds prefix hits, then the granted blocks."""

    grant: Grant
    request: Request
    num_hit_blocks: int
    reserved_unix_ns: int


class GrantTable:
    """All open grants of one decode worker."""

    def __init__(self, context: GrantContext, endpoint: KvEndpoint) -> None:
        self._context = context
        self._endpoint = endpoint
        self._open: dict[str, OpenGrant] = {}
        self._id_of: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def reserve(self, request: Request, num_running: int, now_unix_ns: int, num_extra_tokens: int = 0) -> OpenGrant:
        """Takes prefix hits and allocates the rest of the prompt's blocks, and those for `num_extra_tokens` behind it.

        Raises:
            BatonError: RESOURCE_EXHAUSTED with a retry time when that would eat into the growth reserve of others.
        """
        blocks, pool = self._context.blocks, self._context.pool
        blocks.take_prefix(request)
        num_hit_blocks = len(request.block_ids)
        num_tokens = min(request.num_given_tokens + num_extra_tokens, self._context.max_model_len)
        missing = blocks.blocks_for(num_tokens) - num_hit_blocks
        holders = num_running + len(self._open)
        reserve = self._context.config.scheduler.growth_reserve_blocks * holders
        if missing + reserve > pool.num_allocatable:
            blocks.release(request)
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"decode worker {self._context.config.worker.name} has {pool.num_allocatable} blocks left, the "
                f"prompt needs {missing} and {holders} other requests keep {reserve} to grow; try again later",
                RETRY_AFTER_S,
            )
        blocks.grow(request, num_tokens)
        blocks.count_query(request)
        lease = self._context.config.lease
        grant = Grant(
            grant_id=uuid.uuid4().hex,
            request_id=request.key[0],
            decode=self._context.config.worker,
            epoch=request.key[1],
            first_block=num_hit_blocks,
            block_ids=tuple(request.block_ids[num_hit_blocks:]),
            layout=self._context.runner.layout,
            endpoint=self._endpoint,
            lease_deadline_unix_ns=now_unix_ns + int(lease.lease_s * 1e9),
        )
        entry = OpenGrant(grant, request, num_hit_blocks, now_unix_ns)
        self._open[grant.grant_id] = entry
        self._id_of[request.key] = grant.grant_id
        return entry

    def match(self, ready: KvReady) -> OpenGrant | None:
        """The open grant that `ready` speaks of; None for a stale epoch, another incarnation or a closed grant."""
        entry = self._open.get(ready.grant_id)
        if (
            entry is None
            or ready.epoch != entry.grant.epoch
            or ready.request_id != entry.grant.request_id
            or ready.decode_incarnation != entry.grant.decode.incarnation
        ):
            return None
        return entry

    def by_key(self, key: Key) -> OpenGrant | None:
        """The open grant of an attempt."""
        grant_id = self._id_of.get(key)
        return self._open[grant_id] if grant_id else None

    def by_id(self, grant_id: str) -> OpenGrant | None:
        """The open grant of that id."""
        return self._open.get(grant_id)

    def accept(self, entry: OpenGrant) -> Request:
        """Closes a grant whose KV is in place: no remote write can follow, and the caller owns the request's blocks."""
        self._forget(entry)
        return entry.request

    def close(self, entry: OpenGrant, fenced: bool) -> None:
        """Closes a grant without its KV. Unless `fenced`, its blocks wait out the lease and the longest write."""
        self._forget(entry)
        request, pool = entry.request, self._context.pool
        granted = request.block_ids[entry.num_hit_blocks :]
        if fenced:
            pool.release(granted)
        else:
            deadline = entry.grant.lease_deadline_unix_ns
            until = self._context.config.lease.quarantine_end_unix_ns(deadline)
            pool.quarantine(entry.grant.grant_id, granted, until)
        request.block_ids = request.block_ids[: entry.num_hit_blocks]
        self._context.blocks.release(request)

    def renew(self, grant_id: str, now_unix_ns: int) -> int | None:
        """Gives an open grant a whole lease from now on; its new end, or None when there is no such grant.

        Prefill must hear of it after this, never before: it writes until the end that it knows.
        """
        entry = self._open.get(grant_id)
        if entry is None:
            return None
        end = max(entry.grant.lease_deadline_unix_ns, now_unix_ns + int(self._context.config.lease.lease_s * 1e9))
        grant = msgspec.structs.replace(entry.grant, lease_deadline_unix_ns=end)
        self._open[grant_id] = dataclasses.replace(entry, grant=grant)
        return end

    def expired(self, now_unix_ns: int) -> list[OpenGrant]:
        """Open grants whose lease is over."""
        return [entry for entry in self._open.values() if entry.grant.lease_deadline_unix_ns <= now_unix_ns]

    def holders(self) -> list[list[int]]:
        """The block lists of all open grants, for the integrity check."""
        return [entry.request.block_ids for entry in self._open.values()]

    def _forget(self, entry: OpenGrant) -> None:
        del self._open[entry.grant.grant_id]
        del self._id_of[entry.request.key]
