"""The prefill scheduler: prompts in the order of their ranks, in chunks, each until its first token is drawn.

Its steps are committed before anything else is done to it: a chunk's KV is sent as soon as it is computed.
"""

from collections.abc import Sequence

from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, StepPlan, finish_reason
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.policy import SchedulingPolicy, make_policy
from engine.scheduler.queue import RankedQueue
from engine.scheduler.shares import StepShares


class PrefillScheduler(Scheduler):
    """Running prompts first, then waiting ones, under a token budget.

    A request takes all its prompt's blocks before its first chunk, so that it never stalls half-way and nothing is ever
    preempted, and leaves the scheduler with its first token; whoever called `commit` owns its blocks from then on.
    Chunks end on block borders, except the last, so that whole blocks can travel while the next chunk computes.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: RequestBlocks,
        max_model_len: int,
        policy: SchedulingPolicy | None = None,
    ) -> None:
        self._config = config
        self._prompt_share = max(config.prompt_share, blocks.block_size)
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._policy = policy or make_policy(config)
        self._waiting = RankedQueue()
        self._running: dict[Key, Request] = {}

    def add(self, request: Request) -> None:
        request.rank = self._policy.rank(request)
        self._waiting.push(request)

    def remove(self, key: Key) -> Request | None:
        return self._waiting.remove(key) or self._running.pop(key, None)

    def schedule(self) -> StepPlan:
        shares = StepShares(self._config.max_num_batched_tokens, self._prompt_share, self._chunk)
        running = sorted(self._running.values(), key=lambda request: request.rank)
        for request in running:
            self._plan(request, shares)
        while (first := self._waiting.first) and shares.left and self._start(first):
            if not self._plan(first, shares):
                break
        shares.deal_rest(lambda request, num_tokens: True)
        return StepPlan(tuple(shares.sequences()))

    def _plan(self, request: Request, shares: StepShares) -> bool:
        chunk = shares.offer(request)
        if chunk:
            shares.take(request, chunk)
        return chunk > 0

    def _start(self, request: Request) -> bool:
        if len(self._running) >= self._config.max_num_seqs:
            return False
        self._blocks.take_prefix(request)
        if not self._blocks.grow(request, len(request.tokens)):
            self._blocks.release(request)
            return False
        self._blocks.count_query(request)
        self._waiting.remove(request.key)
        self._running[request.key] = request
        return True

    def _chunk(self, request: Request, limit: int) -> int:
        if request.num_new_tokens <= limit:
            return request.num_new_tokens
        end = request.num_computed_tokens + limit
        return max(0, end - end % self._blocks.block_size - request.num_computed_tokens)

    def advance(self, plan: StepPlan) -> None:
        for request, num_tokens, _ in plan.sequences:
            request.num_computed_tokens += num_tokens

    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[Advanced]:
        advanced, drawn = [], iter(tokens)
        for request, _, sample in plan.sequences:
            self._blocks.register(request)
            if sample:
                del self._running[request.key]
                request.tokens.append(next(drawn))
                advanced.append(Advanced(request, request.tokens[-1], finish_reason(request, self._max_model_len)))
            else:
                advanced.append(Advanced(request, None, None))
        return advanced

    def holders(self) -> Sequence[Sequence[int]]:
        return [request.block_ids for request in self._running.values()]

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
