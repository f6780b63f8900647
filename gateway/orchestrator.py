"""Requests on workers from routing to clean-up: attempts until one ends well, and nothing of any is left behind."""

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from baton.convert import sampling_to_pb
from baton.errors import BatonError
from gateway.apart import ApartAttempt
from gateway.attempt import Finished, Job, PromptLogprobs, Tokens
from gateway.config import Limits
from gateway.journey import Journey, Mover
from gateway.local import LocalAttempt
from gateway.placement import Placement
from gateway.pool import Hold, Pool
from gateway.progress import Progress
from gateway.request_trace import RequestTrace, TraceScope
from gateway.retry import Recovery, RetryBudget, RetryPolicy
from gateway.router import Local, Router
from gateway.validate import ValidatedRequest

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0


class Run:
    """One request under way: iterate over its `PromptLogprobs`, its `Tokens` and, at the end, its `Finished`."""

    def __init__(self, owner: "Orchestrator", job: Job) -> None:
        self._owner = owner
        self._job = job
        self._events: asyncio.Queue[Tokens | PromptLogprobs | Finished | Exception] = asyncio.Queue()
        self._attempt: Journey | None = None  # the newest
        self._epoch = 0  # the newest; an attempt under way takes another one where it is moved
        self._turn = 0  # counts attempts, moved or not
        self._progress = Progress(job.sampling)
        self._ended = False
        self.task = owner.in_background(self._drive())

    def __aiter__(self) -> "Run":
        return self

    async def __anext__(self) -> Tokens | PromptLogprobs | Finished:
        """The next event. Raises `BatonError` when the request failed."""
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = not isinstance(event, Tokens | PromptLogprobs)
        if isinstance(event, Exception):
            raise event
        return event

    async def stop(self) -> Finished:
        """Ends the request early and well: the tokens so far are the answer. Only after a first token."""
        attempt = self._attempt  # which has failed already, perhaps: then this ends the search for another
        assert attempt is not None
        finished = await attempt.stop()
        self.cancel()
        return finished

    def cancel(self) -> None:
        """Nobody wants the answer any more: what the workers hold is freed in the background. Idempotent."""
        self.task.cancel()

    async def _drive(self) -> None:
        try:
            self._events.put_nowait(await self._serve())
        except Exception as error:
            self._events.put_nowait(error)

    async def _serve(self) -> Finished:
        """One attempt after the other, each with its own epoch, until one ends well or none may follow."""
        recovery = Recovery(self._owner.policy, self._owner.budget)
        while True:
            self._epoch += 1
            hold = Hold(self._owner.pool)
            try:
                with self._scope(recovery) as trace:
                    return await self._try(trace, hold, recovery)
            except BatonError as error:
                reason = self._progress.end_reason()
                if reason and self._attempt:
                    return (await self._attempt.stop())._replace(reason=reason)
                wait_s = recovery.after(error, [worker.ref for worker in hold.workers])
                logger.warning("%s: attempt %d failed, another follows: %s", self._job.request_id, self._epoch, error)
                await asyncio.sleep(wait_s)

    def _scope(self, recovery: Recovery) -> AbstractContextManager[TraceScope]:
        """Spans of a first attempt go below the request, those of others below the attempt."""
        trace = self._job.trace
        return nullcontext(trace) if recovery.last is None else trace.attempt(self._epoch, recovery.last)

    async def _try(self, trace: TraceScope, hold: Hold, recovery: Recovery) -> Finished:
        self._turn += 1
        turn = self._turn
        attempt: Journey | None = None

        def newest_job() -> Job:
            return replace(self._job, trace=trace, epoch=self._epoch, output_token_ids=self._progress.token_ids)

        def next_job() -> Job:
            self._epoch += 1
            return newest_job()

        job = newest_job()

        def emit(output: Tokens | PromptLogprobs) -> None:
            if turn != self._turn:
                return  # of an attempt that has failed and still speaks
            if isinstance(output, Tokens):
                self._progress.add(output)
            self._events.put_nowait(output)

        try:
            place = await self._owner.placement.place(job, hold, recovery.failed)
            first = (
                LocalAttempt(job, place.worker, emit) if isinstance(place, Local) else ApartAttempt(job, place, emit)
            )
            attempt = self._attempt = Journey(first, Mover(self._owner.placement, hold, next_job))
            return await attempt.run()
        finally:
            self._owner.in_background(_close(attempt, hold))


class Orchestrator:
    """Starts runs, and finishes their clean-up even when their clients are gone."""

    def __init__(self, pool: Pool, router: Router, limits: Limits, policy: RetryPolicy) -> None:
        self.pool = pool
        self.policy = policy
        self.budget = RetryBudget(policy)
        self.placement = Placement(router, limits, self.in_background)
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()  # runs and clean-up
        self._runs: set[Run] = set()

    def start(self, request: ValidatedRequest, remaining_s: float | None, trace: RequestTrace) -> Run:
        """Begins to serve a request whose client waits `remaining_s` (None: for ever)."""
        job = Job(
            request_id=f"{request.request_id}-{uuid.uuid4().hex[:12]}",
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling_to_pb(request.sampling),
            priority=request.priority,
            deadline=None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s,
            trace=trace,
            limits=self._limits,
        )
        self.budget.count_request()
        run = Run(self, job)
        self._runs.add(run)
        run.task.add_done_callback(lambda _: self._runs.discard(run))
        return run

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs `work` to its end whatever becomes of the request; `close` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancels all runs and waits until they are cleaned up. Idempotent."""
        for run in self._runs:
            run.cancel()
        deadline = asyncio.get_running_loop().time() + _CLOSE_S
        while self._tasks and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)  # clean-up can start more
        for task in self._tasks:
            logger.error("giving up on %s after %g s; the workers' leases will free what it holds", task, _CLOSE_S)
            task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("clean-up failed", exc_info=error)


async def _close(attempt: Journey | None, hold: Hold) -> None:
    try:
        if attempt is not None:
            await attempt.close()
    finally:
        hold.release()
