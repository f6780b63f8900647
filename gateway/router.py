"""Which workers a request goes to: waits for what a policy needs to know, then has it choose."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.no_route import no_route
from gateway.pool import Pool
from gateway.prompt_hashes import PromptHashes
from gateway.routing.base import Apart, Choice, Fleet, Local, Plan, Policy, Query
from gateway.routing.choose import choose, kv_formats
from gateway.routing.claim import Claim
from gateway.routing.simple import Prefix
from gateway.worker import Worker
from gateway.worker_directory import WorkerDirectory

__all__ = ["Apart", "Decision", "Local", "LongestPrefix", "PolicyRouter", "Router"]

logger = logging.getLogger(__name__)


class Decision(NamedTuple):
    """A plan and, for the request's span, how it came about."""

    plan: Plan
    chosen: str
    why: str
    runner_up: str  # "" when there was no choice
    price_s: float | None = None  # where the policy prices
    runner_up_price_s: float | None = None
    claim: Claim | None = None  # to be told of the request

    @property
    def shape(self) -> str:
        """Which kind of choice it is, for metrics."""
        return "apart" if isinstance(self.plan, Apart) else self.plan.worker.record.role.value


class Router(ABC):
    """The seam for routing: what may wait."""

    @abstractmethod
    async def decide(self, token_ids: Sequence[int], last_resort: Collection[WorkerRef] = ()) -> Decision:
        """A plan for one prompt; called again when a chosen decode worker had no room, and for each further attempt.

        Args:
            token_ids: The prompt, and the output that earlier attempts have delivered.
            last_resort: Workers that have refused or failed this request; taken only when there is no other.

        Raises:
            BatonError: UNAVAILABLE naming the role that is missing, or the workers that cannot exchange KV.
        """


class PolicyRouter(Router):
    """Looks up who owns the prompt's prefix and has a policy compare the workers of the pool."""

    def __init__(
        self, pool: Pool, directory: WorkerDirectory, model_fingerprint: str, limits: Limits, policy: Policy
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._hashes = PromptHashes(model_fingerprint)
        self._lookup_s = limits.prefix_lookup_s
        self._policy = policy
        self._slow = False  # as of the last look-up

    async def decide(self, token_ids: Sequence[int], last_resort: Collection[WorkerRef] = ()) -> Decision:
        if not self._can_serve():
            await self._pool.refresh()  # a worker may have registered since the last look
        candidates = [worker for role in Role for worker in self._pool.workers(role)]
        owned = await self._owned_blocks(token_ids, candidates)
        # From here to the caller's `acquire` nothing else runs, so that equal requests spread.
        query = Query(len(token_ids), owned, last_resort)
        fleet = Fleet(*(self._pool.workers(role) for role in (Role.PREFILL, Role.DECODE, Role.AGGREGATED)))
        choices = choose(self._policy, fleet, query)
        if not choices:
            raise no_route(fleet.prefill, fleet.decode, self._pool.recently_gone())
        best, runner_up = choices[0], choices[1] if len(choices) > 1 else None
        return Decision(
            plan=best.plan,
            chosen=_name(best.plan),
            why=_explain(best, query, fleet),
            runner_up=_describe(runner_up, query) if runner_up else "",
            price_s=best.price_s,
            runner_up_price_s=runner_up.price_s if runner_up else None,
            claim=self._policy.take(best, query),
        )

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
                    hashes = self._hashes.of(token_ids, block_size)
                    owned |= await self._directory.longest_prefixes(hashes, refs)
        except TimeoutError:
            if not self._slow:
                logger.warning("prefix look-ups take over %g s and count as misses", self._lookup_s)
            self._slow = True
            return {}
        self._slow = False
        return owned


class LongestPrefix(PolicyRouter):
    """The policy `prefix`."""

    def __init__(self, pool: Pool, directory: WorkerDirectory, model_fingerprint: str, limits: Limits) -> None:
        super().__init__(pool, directory, model_fingerprint, limits, Prefix())


def _name(plan: Plan) -> str:
    if isinstance(plan, Apart):
        return f"prefill {plan.prefill.name}, decode {plan.decode.name}"
    return f"{plan.worker.record.role.value} {plan.worker.name}, which prefills and decodes"


def _explain(choice: Choice, query: Query, fleet: Fleet) -> str:
    said = _describe(choice, query)
    if isinstance(choice.plan, Apart):
        return said
    if not kv_formats(fleet.prefill) & kv_formats(fleet.decode):
        return f"{said}; no prefill and decode worker that can exchange KV are registered"
    if all(any(query.trouble((worker,))) for worker in fleet.prefill):
        return f"{said}; no prefill worker is in reach"
    return f"{said}; cheaper than two workers" if choice.price_s is not None else said


def _describe(choice: Choice, query: Query) -> str:
    return "; ".join(_describe_worker(worker, query) for worker in choice.plan.workers)


def _describe_worker(worker: Worker, query: Query) -> str:
    trouble = "is being drained" if worker.record.draining else "could not be reached lately"
    avoided = f", {trouble}" if worker.avoided else ""
    return f"{worker.name} owns {query.owned_blocks.get(worker.ref, 0)} blocks, {worker.in_flight} in flight{avoided}"
