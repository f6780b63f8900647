"""Which workers a request goes to."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from baton.block_hash import block_hashes
from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.no_route import no_route
from gateway.pool import Pool
from gateway.ranking import Ranking, kv_formats
from gateway.worker import Worker
from gateway.worker_directory import WorkerDirectory

logger = logging.getLogger(__name__)


class Apart(NamedTuple):
    """Prefill on one worker, decode on another."""

    prefill: Worker
    decode: Worker
    cached_blocks: int  # leading prompt blocks that the prefill worker owns

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that the plan occupies."""
        return self.prefill, self.decode


class Local(NamedTuple):
    """Both on one worker."""

    worker: Worker

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that the plan occupies."""
        return (self.worker,)


class Decision(NamedTuple):
    """A plan and, for the request's span, how it came about."""

    plan: Apart | Local
    chosen: str
    why: str
    runner_up: str  # "" when there was no choice


class Router(ABC):
    """The seam for routing policies."""

    @abstractmethod
    async def decide(self, token_ids: Sequence[int], last_resort: Collection[WorkerRef] = ()) -> Decision:
        """A plan for one prompt; called again when a chosen decode worker had no room, and for each further attempt.

        Args:
            token_ids: The prompt, and the output that earlier attempts have delivered.
            last_resort: Workers that have refused or failed this request; taken only when there is no other.

        Raises:
            BatonError: UNAVAILABLE naming the role that is missing, or the workers that cannot exchange KV.
        """


class LongestPrefix(Router):
    """The worker that owns most of the prompt's prefix; of equals, the one with the fewest requests from here.

    A pair is always of one KV format (`WorkerRecord.kv_format`): others would fail once decode has reserved. Where no
    prefill worker is left, a decode worker prefills, too.
    """

    def __init__(self, pool: Pool, directory: WorkerDirectory, model_fingerprint: str, limits: Limits) -> None:
        self._pool = pool
        self._directory = directory
        self._fingerprint = model_fingerprint
        self._lookup_s = limits.prefix_lookup_s
        self._slow = False  # as of the last look-up

    async def decide(self, token_ids: Sequence[int], last_resort: Collection[WorkerRef] = ()) -> Decision:
        if not self._can_serve():
            await self._pool.refresh()  # a worker may have registered since the last look
        candidates = [worker for role in Role for worker in self._pool.workers(role)]
        owned = await self._owned_blocks(token_ids, candidates)
        # From here to the caller's `acquire` nothing else runs, so that equal requests spread.
        ranking = Ranking(owned, last_resort)
        decisions = [*self._apart(ranking, owned), *self._aggregated(ranking, owned), *self._alone(ranking, owned)]
        if not decisions:
            raise no_route(
                self._pool.workers(Role.PREFILL), self._pool.workers(Role.DECODE), self._pool.recently_gone()
            )
        return min(decisions, key=lambda decision: ranking.trouble(*decision.plan.workers))  # the first of equals

    def _apart(self, ranking: Ranking, owned: dict[WorkerRef, int]) -> Iterator[Decision]:
        prefill, decode = ranking.best_pairing(self._pool.workers(Role.PREFILL), self._pool.workers(Role.DECODE))
        if prefill:
            yield Decision(
                plan=Apart(prefill[0], decode[0], owned.get(prefill[0].ref, 0)),
                chosen=f"prefill {prefill[0].name}, decode {decode[0].name}",
                why=f"{_describe(prefill[0], owned)}; {_describe(decode[0], owned)}",
                runner_up="; ".join(_describe(ranked[1], owned) for ranked in (prefill, decode) if len(ranked) > 1),
            )

    def _aggregated(self, ranking: Ranking, owned: dict[WorkerRef, int]) -> Iterator[Decision]:
        if workers := ranking.rank(self._pool.workers(Role.AGGREGATED)):
            why = "no prefill and decode worker that can exchange KV are registered and in reach"
            yield _local("aggregated", workers, why, owned)

    def _alone(self, ranking: Ranking, owned: dict[WorkerRef, int]) -> Iterator[Decision]:
        """A decode worker that prefills, because no prefill worker can be reached or none is there."""
        prefill, decode = self._pool.workers(Role.PREFILL), ranking.rank(self._pool.workers(Role.DECODE))
        if not decode or (prefill and not kv_formats(prefill) & kv_formats(decode)):
            return  # formats that differ are a mistake to be told of
        if not prefill or not any(ranking.trouble(decode[0])):
            yield _local("decode", decode, "no prefill worker is registered and in reach", owned)

    def _can_serve(self) -> bool:
        workers = self._pool.workers
        return bool(workers(Role.AGGREGATED) or kv_formats(workers(Role.PREFILL)) & kv_formats(workers(Role.DECODE)))

    async def _owned_blocks(self, token_ids: Sequence[int], workers: Sequence[Worker]) -> dict[WorkerRef, int]:
        """Hashes depend on the block size, so workers are asked about by block size; mostly there is one."""
        by_block_size: dict[int, list[WorkerRef]] = {}
        for worker in workers:
            by_block_size.setdefault(worker.record.block_size, []).append(worker.ref)
        owned: dict[WorkerRef, int] = {}
        try:
            async with asyncio.timeout(self._lookup_s):
                for block_size, refs in by_block_size.items():
                    hashes = block_hashes(self._fingerprint, token_ids, block_size)
                    owned |= await self._directory.longest_prefixes(hashes, refs)
        except TimeoutError:
            if not self._slow:
                logger.warning("prefix look-ups take over %g s and count as misses", self._lookup_s)
            self._slow = True
            return {}
        self._slow = False
        return owned


def _local(kind: str, ranked: Sequence[Worker], why: str, owned: dict[WorkerRef, int]) -> Decision:
    return Decision(
        plan=Local(ranked[0]),
        chosen=f"{kind} {ranked[0].name}, which prefills and decodes",
        why=f"{_describe(ranked[0], owned)}; {why}",
        runner_up=_describe(ranked[1], owned) if len(ranked) > 1 else "",
    )


def _describe(worker: Worker, owned: dict[WorkerRef, int]) -> str:
    trouble = "is being drained" if worker.record.draining else "could not be reached lately"
    avoided = f", {trouble}" if worker.avoided else ""
    return f"{worker.name} owns {owned.get(worker.ref, 0)} blocks, {worker.in_flight} in flight{avoided}"
