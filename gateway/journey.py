"""An attempt from its first workers to its last: where a decode worker wants to be rid of it, another one goes on."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from baton import faults
from baton.errors import BatonError, ErrorCode
from baton.faults import Point
from baton.rpc import kv_pb2, worker_pb2
from gateway.attempt import Attempt, Finished, Job, Moved
from gateway.metrics import GatewayMetrics
from gateway.moved import MovedAttempt
from gateway.placement import Placement
from gateway.pool import Hold
from gateway.worker_errors import WorkerFailure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mover:
    """What a move needs of the request's run."""

    placement: Placement
    hold: Hold
    next_job: Callable[[], Job]  # with the next epoch, and the output delivered so far
    metrics: GatewayMetrics


class Journey:
    """`run` once; `close` once `run` has ended, however it ended, or after `stop`.

    The tokens of all its workers go through one `OutputOrder`: those that the first one has drawn may come after those
    of the second. A move that fails costs nothing, as long as the worker that was to be left goes on.
    """

    def __init__(self, first: Attempt, mover: Mover) -> None:
        self._attempts = [first]
        self._mover = mover
        self._moving: asyncio.Task[MovedAttempt | None] | None = None  # the newest move
        self._before: Moved | None = None  # what the first worker has left

    async def run(self) -> Finished:
        """Serves the request. Raises BatonError when it failed."""
        while True:
            outcome = await self._run(self._attempts[-1])
            if isinstance(outcome, Finished):
                return self._sum_up(outcome)
            self._before = self._before or outcome
            await self._follow()

    async def stop(self) -> Finished:
        """The tokens so far are enough: ends decoding and sums up."""
        return self._sum_up(await self._attempts[-1].stop())

    async def close(self) -> None:
        """Frees whatever the workers still hold."""
        for attempt in self._attempts:
            await attempt.close()
        moved = await self._moving if self._moving else None
        if moved and moved not in self._attempts:
            await moved.close()

    async def _follow(self) -> None:
        source, hold = self._attempts[-1].decoder, self._mover.hold
        moved = await asyncio.shield(self._moving) if self._moving else None
        if moved is None:  # its answer to Migrate was lost, say
            message = f"decode worker {source.name} has handed the request on to nobody who is known"
            raise WorkerFailure(BatonError(ErrorCode.UNAVAILABLE, message), source.ref, lost=True, at_work=False)
        self._attempts.append(moved)
        hold.switch([worker for worker in hold.workers if worker is not source])

    async def _run(self, attempt: Attempt) -> Finished | Moved:
        running = asyncio.create_task(attempt.run())
        try:
            while not running.done():
                await _first(running, asyncio.create_task(attempt.move_wanted.wait()))
                if running.done():
                    break
                attempt.move_wanted.clear()
                self._moving = asyncio.create_task(self._move(attempt))
                await asyncio.wait([running, self._moving], return_when=asyncio.FIRST_COMPLETED)
                if self._moving.done() and self._moving.result():
                    break  # then `running` ends as moved, behind the last tokens
            return await running
        finally:
            running.cancel()

    async def _move(self, attempt: Attempt) -> MovedAttempt | None:
        """Another worker that goes on with it, or None where it stays."""
        moved = await self._try_to_move(attempt)
        self._mover.metrics.migrations.labels("moved" if moved else "stayed").inc()
        return moved

    async def _try_to_move(self, attempt: Attempt) -> MovedAttempt | None:
        """As `_move`. Leaves no grant behind."""
        placement, hold, source = self._mover.placement, self._mover.hold, attempt.decoder
        job = self._mover.next_job()
        with job.trace.child("gateway.migrate") as span:
            span.set_attribute("baton.migrate.from", source.name)
            try:
                place = await placement.elsewhere(job, source)
            except BatonError as error:
                logger.info("%s stays on %s: %s", job.request_id, source.name, error)
                return None
            span.set_attribute("baton.migrate.to", place.worker.name)
            held = hold.workers
            hold.switch([*held, place.worker])
            moved = MovedAttempt(job, place.worker, place.grant, attempt.order)
            answer = await _migrate(attempt, job, place.grant)
            if answer.moved:
                logger.info("%s goes on on %s instead of %s", job.request_id, place.worker.name, source.name)
                return moved
            logger.info("%s was not moved from %s: %s", job.request_id, source.name, answer.problem)
            await moved.give_back(answer.fenced)
            hold.switch(held)
            return None

    def _sum_up(self, finished: Finished) -> Finished:
        if self._before is None:
            return finished
        hand_over = self._before.hand_over
        hand_over.decode_worker = finished.hand_over.decode_worker
        return Finished(finished.reason, self._before.cached_prompt_tokens, hand_over)


async def _first(running: "asyncio.Task[Finished | Moved]", waiting: "asyncio.Task[Any]") -> None:
    """Until one of them is done; `waiting` does not go on then."""
    try:
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _migrate(source: Attempt, job: Job, grant: kv_pb2.Grant) -> worker_pb2.MigrateResponse:
    """What the source says; where it says nothing, that it may still write."""
    faults.at(Point.MIGRATE_SENT)
    try:
        response: worker_pb2.MigrateResponse = await source.decoder.decode.Migrate(
            worker_pb2.MigrateRequest(
                request_id=source.job.request_id,
                epoch=source.job.epoch,
                grant=grant,
                num_reserved_tokens=len(job.prompt_token_ids) + len(job.output_token_ids),
            ),
            timeout=job.limits.migrate_timeout_s,
            metadata=job.trace.metadata,
        )
    except grpc.aio.AioRpcError as error:
        return worker_pb2.MigrateResponse(moved=False, fenced=False, problem=f"{error.code()} {error.details()}")
    return response
