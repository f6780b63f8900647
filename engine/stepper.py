"""Engine steps, one planned and launched while the device runs the one before, and the moments of each request."""

import time
from typing import NamedTuple

from engine.context import EngineContext
from engine.messages import ComputeSpan, PromptLogprobs, Tokens
from engine.request import Request
from engine.scheduler.base import Advanced, BlockCopies, Scheduler, StepPlan
from engine.step_in_flight import StepInFlight, StepResult
from engine.step_log import StepRecord, StepWork, work_of

# 20 alternatives each make 150 KB of them on the wire; gRPC clients take 4 MB unless told otherwise.
_POSITIONS_AT_ONCE = 512


class StepOutcome:
    """What a step did; without `ran`, nothing could run."""

    def __init__(
        self, advanced: list[Advanced], result: StepResult, ran: bool = True, has_prompts: bool = False
    ) -> None:
        """`has_prompts`: whether it computed tokens of any."""
        self.advanced = advanced
        self.ran = ran
        self._has_prompts = has_prompts
        self._result = result

    def tokens_event(self, item: Advanced) -> Tokens:
        """The event for a request that got a token."""
        assert item.token is not None
        request = item.request
        logprobs = self._result.logprobs.get(request.key)
        queue_us = compute_us = 0
        if self._has_prompts and request.prefill_chunks and len(request.tokens) == request.num_given_tokens + 1:
            queue_us = (request.started_unix_ns - request.queued_unix_ns) // 1000
            compute_us = (request.first_token_unix_ns - request.started_unix_ns) // 1000
        return Tokens(
            *request.key,
            output_position=request.num_output_tokens - 1,
            token_ids=(item.token,),
            logprobs=(logprobs,) if logprobs else (),
            cached_tokens=request.num_cached_tokens,
            queue_us=max(0, queue_us),
            compute_us=max(0, compute_us),
        )

    def prompt_events(self, item: Advanced) -> list[PromptLogprobs]:
        """The events for a request of whose prompt this step has something to tell; in front of its `tokens_event`."""
        request = item.request
        told = self._result.prompt_logprobs.get(request.key)
        if told is None:
            return []
        return [
            PromptLogprobs(*request.key, told.first_position + at, tuple(told.logprobs[at : at + _POSITIONS_AT_ONCE]))
            for at in range(0, len(told.logprobs), _POSITIONS_AT_ONCE)
        ]


class _Launched(NamedTuple):
    plan: StepPlan
    step: StepInFlight
    start_ns: int
    prompts: list[tuple[Request, int]]  # requests with so many given tokens to compute
    work: StepWork | None  # where steps are recorded

    @property
    def decides_the_next(self) -> bool:
        """Whether its tokens must be known on the host before the next step is planned; the one place that says so."""
        return any(request.needs_known_tokens for request in self.step.requests)


class Stepper:
    """The steps of one scheduler.

    With `overlap`, `step` leaves a step in flight behind, unless there is nothing to launch or the next step depends on
    tokens on the host. So the device goes from one step to the next without waiting, a stop token is found while the
    step behind it runs, and whoever gets nothing out of overlapping waits for nothing.
    """

    def __init__(self, context: EngineContext, scheduler: Scheduler, overlap: bool) -> None:
        self._context = context
        self._scheduler = scheduler
        self._overlap = overlap
        self._in_flight: _Launched | None = None
        self._idle = True  # nothing could run at the last look
        self._ended_ns = 0  # when the newest step was found to have ended

    def step(self) -> StepOutcome:
        """Launches what can be launched, then waits for the oldest step's end."""
        oldest = self._in_flight or self._launch()
        if oldest is None:
            self._idle = True
            return StepOutcome([], StepResult((), {}), ran=False)
        self._in_flight = oldest  # which planning must know of
        newest = self._launch() if self._overlap and not oldest.decides_the_next else None
        self._in_flight = newest
        return self._collect(oldest)

    def _launch(self) -> _Launched | None:
        scheduler = self._scheduler
        plan = scheduler.schedule()
        self._copy(plan.copies)
        if not plan.sequences:
            return None
        for request, _, sampled in plan.sequences:
            if sampled and request.grammar:  # one that came from elsewhere brings output that its grammar has not seen
                request.grammar.catch_up(request.tokens[request.num_prompt_tokens :])
        start_ns = time.time_ns()
        step = self._context.runner.launch(plan)
        prompts = []
        for request, num_tokens, _ in plan.sequences:
            request.started_unix_ns = request.started_unix_ns or start_ns
            if request.num_computed_tokens < request.num_given_tokens:
                prompts.append((request, num_tokens))
                request.num_told_positions += len(request.positions_told_by(num_tokens))
        work = work_of(plan.sequences) if self._context.step_log else None
        scheduler.advance(plan)
        return _Launched(plan, step, start_ns, prompts, work)

    def _copy(self, copies: BlockCopies) -> None:
        if not any(copies):
            return
        if self._in_flight:
            self._in_flight.step.wait()  # the device copies behind it, which is not the copies' cost
        start_s = time.perf_counter()
        self._context.runner.copy_blocks(copies)
        if not copies.within:  # which say nothing of what the way to the host costs
            num_copies = len(copies.outs) + len(copies.ins)
            self._context.costs.observe_copy(num_copies, time.perf_counter() - start_s)

    def _collect(self, launched: _Launched) -> StepOutcome:
        plan, step, start_ns, prompts, work = launched
        result = step.result()
        end_ns = time.time_ns()
        start_ns = max(start_ns, self._ended_ns)  # it waited for the step before
        self._ended_ns = end_ns
        seconds = (end_ns - start_ns) / 1e9
        if work is not None and self._context.step_log:
            self._context.step_log.add(StepRecord(work, start_ns, end_ns, self._idle))
        self._idle = False
        self._context.costs.observe_step(plan.num_tokens, len(plan.sequences), seconds)
        self._context.counts.step(seconds, plan.num_tokens, len(plan.sequences))
        for request, token in zip(step.requests, result.tokens, strict=True):
            if request.grammar:
                request.grammar.accept(token)
            request.first_token_unix_ns = request.first_token_unix_ns or end_ns
        for request, num_tokens in prompts:
            request.prefill_chunks.append(ComputeSpan(start_ns, end_ns, num_tokens))
        return StepOutcome(self._scheduler.commit(plan, result.tokens), result, has_prompts=bool(prompts))
