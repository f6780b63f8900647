"""One engine step: schedule, execute, commit, and the moments it adds to each request's timeline."""

import time

from engine.context import EngineContext
from engine.messages import ComputeSpan, PromptLogprobs, Tokens
from engine.runner import StepResult
from engine.scheduler.base import Advanced, Scheduler

# 20 alternatives each make 150 KB of them on the wire; gRPC clients take 4 MB unless told otherwise.
_POSITIONS_AT_ONCE = 512


class StepOutcome:
    """What a step did; empty when nothing could run."""

    def __init__(self, advanced: list[Advanced], result: StepResult) -> None:
        self.advanced = advanced
        self._result = result

    def tokens_event(self, item: Advanced) -> Tokens:
        """The event for a request that got a token."""
        assert item.token is not None
        request = item.request
        logprobs = self._result.logprobs.get(request.key)
        return Tokens(
            *request.key,
            output_position=request.num_output_tokens - 1,
            token_ids=(item.token,),
            logprobs=(logprobs,) if logprobs else (),
            cached_tokens=request.num_cached_tokens,
        )

    def prompt_events(self, item: Advanced) -> list[PromptLogprobs]:
        """The events for a request of whose prompt this step has something to tell; in front of its `tokens_event`."""
        told, request = self._result.prompt_logprobs.get(item.request.key, ()), item.request
        first = request.num_told_positions - len(told)
        return [
            PromptLogprobs(*request.key, first + at, tuple(told[at : at + _POSITIONS_AT_ONCE]))
            for at in range(0, len(told), _POSITIONS_AT_ONCE)
        ]


def run_step(context: EngineContext, scheduler: Scheduler) -> StepOutcome:
    """Runs the next step of `scheduler`."""
    plan = scheduler.schedule()
    if num_copies := len(plan.copies.outs) + len(plan.copies.ins):
        start_s = time.perf_counter()
        context.runner.swap(plan.copies)
        context.costs.observe_copy(num_copies, time.perf_counter() - start_s)
    if not plan.sequences:
        return StepOutcome([], StepResult({}, {}))
    grammars = [(request, request.grammar) for request, _, sampled in plan.sequences if sampled and request.grammar]
    for request, grammar in grammars:  # a request that came from elsewhere brings output that its grammar has not seen
        grammar.catch_up(request.tokens[request.num_prompt_tokens :])
    start_ns = time.time_ns()
    result = context.runner.execute(plan)
    end_ns = time.time_ns()
    for request, grammar in grammars:
        grammar.accept(result.tokens[request.key])
    context.costs.observe_step(plan.num_tokens, len(plan.sequences), (end_ns - start_ns) / 1e9)
    for request, num_tokens, sampled in plan.sequences:
        request.started_unix_ns = request.started_unix_ns or start_ns
        request.num_told_positions += len(result.prompt_logprobs.get(request.key, ()))
        if request.num_computed_tokens < request.num_given_tokens:
            request.prefill_chunks.append(ComputeSpan(start_ns, end_ns, num_tokens))
        if sampled:
            request.first_token_unix_ns = request.first_token_unix_ns or end_ns
    context.num_steps += 1
    return StepOutcome(scheduler.commit(plan, result.tokens), result)
