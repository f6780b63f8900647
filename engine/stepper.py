"""One engine step: schedule, execute, commit, and the moments it adds to each request's timeline."""

import time

from engine.context import EngineContext
from engine.messages import ComputeSpan, Tokens
from engine.runner import StepResult
from engine.scheduler.base import Advanced, Scheduler


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


def run_step(context: EngineContext, scheduler: Scheduler) -> StepOutcome:
    """Runs the next step of `scheduler`."""
    plan = scheduler.schedule()
    if not plan.sequences:
        return StepOutcome([], StepResult({}, {}))
    start_ns = time.time_ns()
    result = context.runner.execute(plan)
    end_ns = time.time_ns()
    for request, num_tokens, sampled in plan.sequences:
        request.started_unix_ns = request.started_unix_ns or start_ns
        if request.num_computed_tokens < request.num_prompt_tokens:
            request.prefill_chunks.append(ComputeSpan(start_ns, end_ns, num_tokens))
        if sampled:
            request.first_token_unix_ns = request.first_token_unix_ns or end_ns
    context.num_steps += 1
    return StepOutcome(scheduler.commit(plan, result.tokens), result)
