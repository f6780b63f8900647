"""The decode scheduler: continuous batching of running requests, with local prefill in what is left of the budget."""

import time
from collections.abc import Mapping, Sequence

from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, SequencePlan, StepPlan, finish_reason
from engine.scheduler.blocks import RequestBlocks


class DecodeScheduler(Scheduler):
    """Running decodes first, then running prefills, then waiting requests; first come, first served within each.

    A waiting request either needs its prompt computed here (`add`) or arrives with its KV in place (`admit`). When
    blocks run out, the youngest running request is preempted: its blocks go back, and it waits at the front to have its
    prompt and output so far computed again (vLLM's recompute preemption), mostly out of the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, blocks: RequestBlocks, max_model_len: int) -> None:
        self._config = config
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._waiting: dict[Key, Request] = {}
        self._running: dict[Key, Request] = {}
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        self._waiting[request.key] = request

    def admit(self, request: Request) -> None:
        """Queues a request whose prompt's KV is in its blocks and whose first output token is known."""
        self._waiting[request.key] = request

    def remove(self, key: Key) -> Request | None:
        return self._waiting.pop(key, None) or self._running.pop(key, None)

    def schedule(self) -> StepPlan:
        planned: dict[Key, SequencePlan] = {}
        budget = self._config.max_num_batched_tokens
        preempted = False
        for request in sorted(self._running.values(), key=lambda request: request.num_new_tokens > 1):
            if request.key not in self._running:  # preempted for the sake of an older one
                continue
            chunk = min(request.num_new_tokens, budget)
            if chunk == 0:
                break
            while not self._blocks.grow(request, request.num_computed_tokens + chunk):
                preempted = True
                victim = self._preempt_youngest()
                planned_victim = planned.pop(victim.key, None)
                budget += planned_victim.num_tokens if planned_victim else 0
                if victim is request:
                    break
            else:
                budget -= chunk
                planned[request.key] = SequencePlan(request, chunk, sample=chunk == request.num_new_tokens)
        if not preempted:
            self._start_waiting(planned, budget)
        return StepPlan(tuple(planned.values()))

    def _preempt_youngest(self) -> Request:
        key, victim = self._running.popitem()
        victim.preempted_unix_ns.append(time.time_ns())
        self._blocks.release(victim)
        self._waiting = {key: victim, **self._waiting}
        self.num_preemptions += 1
        return victim

    def _start_waiting(self, planned: dict[Key, SequencePlan], budget: int) -> None:
        for request in list(self._waiting.values()):
            if budget == 0 or len(self._running) >= self._config.max_num_seqs or not self._has_room(request):
                return
            if not request.block_ids:
                self._blocks.take_prefix(request)
                self._blocks.count_query(request)
            chunk = min(request.num_new_tokens, budget)
            if not self._blocks.grow(request, request.num_computed_tokens + chunk):
                # Blocks held by those who wait could stop each other for good: with nothing running, they go back.
                if request.num_new_tokens > 1 or not self._running:
                    self._blocks.release(request)
                if self._running:
                    return
                continue
            self._running[request.key] = self._waiting.pop(request.key)
            budget -= chunk
            planned[request.key] = SequencePlan(request, chunk, sample=chunk == request.num_new_tokens)

    def _has_room(self, request: Request) -> bool:
        """Whether the whole request so far fits and leaves the running ones their growth reserve.

        A request that is alone may use everything, so that one long sequence is never refused for good.
        """
        if not self._running:
            return True
        reserve = self._config.growth_reserve_blocks * len(self._running)
        missing = self._blocks.blocks_for(len(request.tokens)) - len(request.block_ids)
        return missing + reserve <= self._blocks.pool.num_allocatable

    def commit(self, plan: StepPlan, tokens: Mapping[Key, int]) -> list[Advanced]:
        advanced = []
        for request, num_tokens, sample in plan.sequences:
            request.num_computed_tokens += num_tokens
            self._blocks.register(request)
            token, finish = None, None
            if sample:
                token = tokens[request.key]
                request.tokens.append(token)
                finish = finish_reason(request, self._max_model_len)
                if finish:
                    del self._running[request.key]
                    self._blocks.release(request)
            advanced.append(Advanced(request, token, finish))
        return advanced

    def holders(self) -> Sequence[Sequence[int]]:
        return [request.block_ids for request in [*self._running.values(), *self._waiting.values()]]

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
