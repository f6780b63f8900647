"""Requests on workers from routing to clean-up: attempts until one ends well, and nothing of any is left behind."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from baton.convert import sampling_to_pb
from baton.errors import BatonError
from gateway.apart import ApartAttempt
from gateway.attempt import Attempt, Emit, Finished, Job, PromptLogprobs, Tokens
from gateway.config import Limits
from gateway.fork import ForkAttempt, ForkPlace
from gateway.journey import Journey, Mover
from gateway.local import LocalAttempt
from gateway.metrics import GatewayMetrics
from gateway.num_answers import sampling_of
from gateway.placement import Granted, Placement
from gateway.pool import Hold, Pool
from gateway.progress import Progress
from gateway.request_trace import RequestTrace, TraceScope
from gateway.retry import Recovery, RetryBudget, RetryPolicy
from gateway.router import Local, Router
from gateway.run_group import Events, RunGroup
from gateway.validate import ValidatedRequest

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0

ToldPlace = asyncio.Future[ForkPlace | None]  # None: there was no attempt to the end


class Run:
    """One answer under way: puts its `PromptLogprobs`, its `Tokens` and, at the end, its `Finished` into `events`.

    The first attempt at an answer behind the first one is where the first attempt at that is, for they have one prompt.
    What comes after a failure is on its own: it has output to be computed, too.
    """

    def __init__(self, owner: "Orchestrator", job: Job, events: Events, fork_place: ToldPlace | None) -> None:
        """`fork_place`: what the run of answer 0 tells the others; None when there are none."""
        self._owner = owner
        self._job = job
        self._events = events
        self._fork_place = fork_place
        self._leads = job.answer_index == 0 and fork_place is not None
        self._attempt: Journey | None = None  # the newest
        self._epoch = 0  # the newest; an attempt under way takes another one where it is moved
        self._turn = 0  # counts attempts, moved or not
        self._progress = Progress(job.sampling)
        self.task = owner.in_background(self._drive())
        if self._leads:
            self.task.add_done_callback(lambda _: self._tell(None))  # the others need not wait any more

    async def stop(self) -> Finished:
        """Ends the answer early and well: the tokens so far are the answer. Only after a first token."""
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
            self._emit(await self._serve())
        except Exception as error:
            self._emit(error)

    def _emit(self, event: Tokens | PromptLogprobs | Finished | Exception) -> None:
        self._events.put_nowait((self._job.answer_index, event))

    async def _serve(self) -> Finished:
        """One attempt after the other, each with its own epoch, until one ends well or none may follow."""
        recovery = Recovery(self._owner.policy, self._owner.budget)
        while True:
            self._epoch += 1
            hold = Hold(self._owner.pool)
            self._owner.metrics.attempts.inc()
            try:
                with self._scope(recovery) as trace:
                    return await self._try(trace, hold, recovery)
            except BatonError as error:
                reason = self._progress.end_reason()
                if reason and self._attempt:
                    return (await self._attempt.stop())._replace(reason=reason)
                wait_s = recovery.after(error, [worker.ref for worker in hold.workers])
                self._owner.metrics.retries.labels(error.code.value).inc()
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
                if hold.claim is not None:
                    hold.claim.produced(len(output.token_ids))
            self._emit(output)

        try:
            place = await self._place(job, hold, recovery)
            first = _open(job, place, emit)
            if self._leads:
                self._owner.in_background(self._tell_when_known(first, job.epoch))
            attempt = self._attempt = Journey(first, Mover(self._owner.placement, hold, next_job, self._owner.metrics))
            finished = await attempt.run()
            if hold.claim is not None:
                hold.claim.finished(finished.cached_prompt_tokens, *_handed_over(finished, hold))
            return finished
        finally:
            self._owner.in_background(_close(attempt, hold))

    async def _place(self, job: Job, hold: Hold, recovery: Recovery) -> Granted | Local | ForkPlace:
        if self._fork_place and not self._leads and recovery.last is None:
            place = await asyncio.shield(self._fork_place)
            if place:
                hold.switch((place.worker,))
                return place
        return await self._owner.placement.place(job, hold, recovery.failed)

    async def _tell_when_known(self, attempt: Attempt, epoch: int) -> None:
        await attempt.known()
        self._tell(ForkPlace(attempt.decoder, self._job.request_id, epoch))

    def _tell(self, place: ForkPlace | None) -> None:
        if self._fork_place and not self._fork_place.done():
            self._fork_place.set_result(place)


def _handed_over(finished: Finished, hold: Hold) -> tuple[int, float]:
    """Tokens that travelled, and the seconds that this kept the request from decoding."""
    done = finished.hand_over
    return done.blocks * hold.workers[-1].record.block_size, (done.exposed_us + done.verify_us + done.control_us) / 1e6


def _open(job: Job, place: Granted | Local | ForkPlace, emit: Emit) -> Attempt:
    if isinstance(place, Granted):
        return ApartAttempt(job, place, emit)
    if isinstance(place, ForkPlace):
        return ForkAttempt(job, place, emit)
    return LocalAttempt(job, place.worker, emit)


class Orchestrator:
    """Starts runs, and finishes their clean-up even when their clients are gone."""

    def __init__(
        self,
        pool: Pool,
        router: Router,
        limits: Limits,
        policy: RetryPolicy,
        metrics: GatewayMetrics,
        when_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_refused`: called whenever a decode worker has no room for a request."""
        self.pool = pool
        self.policy = policy
        self.budget = RetryBudget(policy)
        self.metrics = metrics
        self.placement = Placement(router, limits, self.in_background, metrics, when_refused)
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()  # runs and clean-up
        self._runs: set[Run] = set()

    def start(self, request: ValidatedRequest, remaining_s: float | None, trace: RequestTrace) -> RunGroup:
        """Begins to serve a request whose client waits `remaining_s` (None: for ever)."""
        request_id = f"{request.request_id}-{uuid.uuid4().hex[:12]}"
        n, best_of = request.num_answers
        first = Job(
            request_id=request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling_to_pb(sampling_of(request.sampling, 0, ranked=best_of > n)),
            priority=request.priority,
            deadline=None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s,
            trace=trace,
            limits=self._limits,
        )
        events: Events = asyncio.Queue()
        fork_place = asyncio.get_running_loop().create_future() if best_of > 1 else None
        runs = [self._run(first, events, fork_place)]
        for index in range(1, best_of):
            sampling = sampling_to_pb(sampling_of(request.sampling, index, ranked=best_of > n))
            job = replace(first, request_id=f"{request_id}.{index}", sampling=sampling, answer_index=index)
            runs.append(self._run(job, events, fork_place))
        return RunGroup(runs, events)

    def _run(self, job: Job, events: Events, fork_place: ToldPlace | None) -> Run:
        self.budget.count_request()
        run = Run(self, job, events, fork_place)
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
