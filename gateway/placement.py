"""A place for a request: a plan from the router and, for two workers, a grant from the one that decodes."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from time import perf_counter
from typing import Any, NamedTuple

import grpc

from baton import faults
from baton.errors import BatonError, ErrorCode
from baton.faults import Point
from baton.rpc import kv_pb2, worker_pb2
from baton.types import Role, WorkerRef
from gateway.attempt import Job
from gateway.config import Limits
from gateway.metrics import GatewayMetrics
from gateway.pool import Hold
from gateway.refusals import Refusals
from gateway.release import release_grant
from gateway.router import Apart, Decision, Local, Router
from gateway.worker import Worker
from gateway.worker_errors import WorkerFailure, worker_error

logger = logging.getLogger(__name__)

_MOVE_ROOM_TOKENS = 64  # that a request may draw while its KV travels; then it stops until the rest has arrived

InBackground = Callable[[Coroutine[Any, Any, None]], object]


class Granted(NamedTuple):
    """Two workers, and decode's promise of a place to land."""

    plan: Apart
    grant: kv_pb2.Grant
    renew_after_s: float  # 0: its lease cannot be renewed


class Elsewhere(NamedTuple):
    """Another decode worker, and its promise of a place to land for a request that runs already."""

    worker: Worker
    grant: kv_pb2.Grant


class Placement:
    """Routes requests and reserves room for them."""

    def __init__(
        self,
        router: Router,
        limits: Limits,
        in_background: InBackground,
        metrics: GatewayMetrics,
        when_refused: Callable[[], None],
    ) -> None:
        """`in_background` runs clean-up that outlives its request; `when_refused` hears of workers without room."""
        self._when_refused = when_refused
        self._router = router
        self._limits = limits
        self._in_background = in_background
        self._metrics = metrics

    async def place(self, job: Job, hold: Hold, failed: Collection[WorkerRef] = ()) -> Granted | Local:
        """Waits for room as long as the decode workers ask for, other decode workers first.

        `hold` ends up on the chosen workers. `failed` ones are taken only when there is no other.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when there was no room in time, UNAVAILABLE when workers are missing or died.
        """
        clock = asyncio.get_running_loop().time
        remaining_s = job.remaining_s()
        wait_s = min(self._limits.max_reserve_wait_s, remaining_s if remaining_s is not None else 1e9)
        refusals = Refusals(clock(), wait_s)
        while True:
            decision = await self._route(job, refusals.workers | set(failed))
            plan = decision.plan
            hold.switch(plan.workers, decision.claim)
            if isinstance(plan, Local):
                return plan
            try_at = refusals.try_at_s(plan.decode.ref, clock())
            try:
                reserve_s = clock()
                with job.trace.child("decode.reserve") as span:
                    span.set_attribute("baton.worker", plan.decode.name)
                    await asyncio.sleep(max(0.0, try_at - clock()))
                    response = await self._reserve(job, plan.decode)
                    self._metrics.reserve_seconds.observe(clock() - reserve_s)
                    if decision.claim is not None:
                        decision.claim.placed()
                    return Granted(plan, response.grant, response.renew_after_ms / 1000)
            except BatonError as error:
                refusals.add(plan.decode.ref, error, clock())
                self._metrics.refusals.inc()
                self._when_refused()

    async def elsewhere(self, job: Job, source: Worker) -> Elsewhere:
        """Room for a request that `source` decodes, on another decode worker; nothing is waited for.

        Raises:
            BatonError: there is none.
        """
        decision = await self._route(job, {source.ref})
        if decision.claim is not None:
            decision.claim.dropped()  # its prompt is not computed again
        plan = decision.plan
        worker = plan.decode if isinstance(plan, Apart) else plan.worker
        roles = {worker.record.role, source.record.role}
        if worker is source or worker.avoided or roles != {Role.DECODE}:
            raise BatonError(ErrorCode.UNAVAILABLE, "no other decode worker is in reach and takes requests")
        if worker.record.kv_format != source.record.kv_format:
            raise BatonError(ErrorCode.FAILED_PRECONDITION, f"decode worker {worker.name} has KV of another format")
        response = await self._reserve(job, worker, _MOVE_ROOM_TOKENS)
        return Elsewhere(worker, response.grant)

    async def _route(self, job: Job, last_resort: Collection[WorkerRef]) -> Decision:
        with job.trace.child("gateway.route") as span:
            start_s = perf_counter()
            decision = await self._router.decide([*job.prompt_token_ids, *job.output_token_ids], last_resort)
            span.set_attribute("baton.route.chosen", decision.chosen)
            span.set_attribute("baton.route.why", decision.why)
            span.set_attribute("baton.route.runner_up", decision.runner_up)
            if decision.price_s is not None:
                span.set_attribute("baton.route.price_s", decision.price_s)
            if decision.runner_up_price_s is not None:
                span.set_attribute("baton.route.runner_up_price_s", decision.runner_up_price_s)
            if isinstance(decision.plan, Apart):
                span.set_attribute("baton.route.cached_blocks", decision.plan.cached_blocks)
            self._metrics.routed(decision, perf_counter() - start_s)
            return decision

    async def _reserve(self, job: Job, worker: Worker, num_extra_tokens: int = 0) -> worker_pb2.ReserveResponse:
        """A cancelled caller does not cancel the call: its answer may be a grant, which then is given back."""
        calling = asyncio.create_task(self._call_reserve(job, worker, num_extra_tokens))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            self._in_background(_give_back(job, worker, calling))
            raise

    async def _call_reserve(self, job: Job, worker: Worker, num_extra_tokens: int) -> worker_pb2.ReserveResponse:
        faults.at(Point.RESERVE_SENT)
        remaining_s = job.remaining_s()
        timeout_s = self._limits.reserve_timeout_s
        if job.sampling.HasField("structured"):
            timeout_s += self._limits.grammar_compile_s
        try:
            response: worker_pb2.ReserveResponse = await worker.decode.Reserve(
                worker_pb2.ReserveRequest(
                    request_id=job.request_id,
                    epoch=job.epoch,
                    prompt_token_ids=job.prompt_token_ids,
                    sampling=job.sampling,
                    output_token_ids=job.output_token_ids,
                    priority=job.priority,
                    num_extra_tokens=num_extra_tokens,
                ),
                timeout=timeout_s if remaining_s is None else min(timeout_s, remaining_s),
                metadata=job.trace.metadata,
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and job.remaining_s() != 0:
                worker.avoid(self._limits.avoid_s)
                silent = BatonError(
                    ErrorCode.UNAVAILABLE,
                    f"decode worker {worker.name} gave no answer to Reserve in {timeout_s:g} s; send the request again",
                    retry_after_s=self._limits.avoid_s,
                )
                raise WorkerFailure(silent, worker.ref, lost=True, at_work=False) from error
            raise worker_error(error, worker, self._limits) from error
        return response


async def _give_back(job: Job, worker: Worker, calling: "asyncio.Task[worker_pb2.ReserveResponse]") -> None:
    try:
        grant = (await calling).grant
    except BatonError as error:
        logger.info("%s: cancelled while reserving, and nothing was granted: %s", job.request_id, error)
        return
    await release_grant(job, worker, grant, fenced=True)  # prefill has not begun
