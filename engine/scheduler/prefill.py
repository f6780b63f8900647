"""The prefill scheduler: prompts in order of arrival, in chunks, each until its first token is drawn."""

from collections.abc import Mapping, Sequence

from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, SequencePlan, StepPlan, finish_reason
from engine.scheduler.blocks import RequestBlocks


class PrefillScheduler(Scheduler):
    """First come, first served under a token budget.

    A request takes all its prompt's blocks before its first chunk, so that it never stalls half-way, and leaves the
    scheduler with its first token; whoever called `commit` owns its blocks from then on. Chunks end on block borders,
    except the last, so that whole blocks can travel while the next chunk computes.
    """

    def __init__(self, config: SchedulerConfig, blocks: RequestBlocks, max_model_len: int) -> None:
        self._config = config
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._waiting: dict[Key, Request] = {}
        self._running: dict[Key, Request] = {}

    def add(self, request: Request) -> None:
        self._waiting[request.key] = request

    def remove(self, key: Key) -> Request | None:
        return self._waiting.pop(key, None) or self._running.pop(key, None)

    def schedule(self) -> StepPlan:
        budget = self._config.max_num_batched_tokens
        planned = []
        for request in [*self._running.values(), *self._waiting.values()]:
            if request.key in self._waiting and not self._start(request):
                break
            chunk = self._chunk(request, budget)
            if chunk == 0:
                break
            planned.append(SequencePlan(request, chunk, sample=chunk == request.num_new_tokens))
            budget -= chunk
        return StepPlan(tuple(planned))

    def _start(self, request: Request) -> bool:
        if len(self._running) >= self._config.max_num_seqs:
            return False
        self._blocks.take_prefix(request)
        if not self._blocks.grow(request, len(request.tokens)):
            self._blocks.release(request)
            return False
        self._blocks.count_query(request)
        self._running[request.key] = self._waiting.pop(request.key)
        return True

    def _chunk(self, request: Request, budget: int) -> int:
        if request.num_new_tokens <= budget:
            return request.num_new_tokens
        end = request.num_computed_tokens + budget
        return max(0, end - end % self._blocks.block_size - request.num_computed_tokens)

    def commit(self, plan: StepPlan, tokens: Mapping[Key, int]) -> list[Advanced]:
        advanced = []
        for request, num_tokens, sample in plan.sequences:
            request.num_computed_tokens += num_tokens
            self._blocks.register(request)
            if sample:
                del self._running[request.key]
                request.tokens.append(tokens[request.key])
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
