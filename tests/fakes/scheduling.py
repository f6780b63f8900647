"""Schedulers without a model: requests of a few tokens, and a memory that knows whose KV each slot should hold."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from baton.block_hash import root_hash
from baton.types import SamplingParams
from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, StepPlan
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.scheduler.decode import DecodeScheduler
from engine.scheduler.policy import SchedulingPolicy
from engine.scheduler.preemption import Preemption
from engine.scheduler.swap_space import SwapSpace

BLOCK = 4
MAX_LEN = 64
STOP = 7


class ScriptedCosts(PreemptionCosts):
    """Swaps when `swap` says so."""

    def __init__(self, swap: bool) -> None:
        super().__init__(block_bytes=1)
        self.swap = swap

    def prefers_swap(self, num_tokens: int, num_blocks: int) -> bool:
        return self.swap and num_tokens > 0


def make_request(name: str, prompt: list[int], max_tokens: int = 4, priority: int = 0) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=(STOP,))
    return Request((name, 1), len(prompt), sampling, list(prompt), 0, root_hash("model"), priority=priority)


class DecodeFixture:
    """A decode scheduler and all that it works on; with `overlap`, each step is planned while one is in flight."""

    def __init__(
        self,
        num_blocks: int = 32,
        config: SchedulerConfig | None = None,
        swap_blocks: int = 0,
        policy: SchedulingPolicy | None = None,
        overlap: bool = False,
    ) -> None:
        self.blocks = RequestBlocks(BlockPool(num_blocks), BLOCK)
        self.costs = ScriptedCosts(swap=swap_blocks > 0)
        self.preemption = Preemption(self.blocks, SwapSpace(swap_blocks), self.costs)
        config = config or SchedulerConfig(16, 8, growth_reserve_blocks=1)
        self.scheduler = DecodeScheduler(config, self.blocks, MAX_LEN, self.preemption, policy)
        self.memory = Memory()
        self._overlap = overlap
        self._in_flight: tuple[StepPlan, dict[Key, int]] | None = None
        self._written: set[int] = set()  # blocks that the step in flight writes

    def step(self, token: int = 1) -> tuple[StepPlan, list[Advanced]]:
        """Plans a step, whose draws are all `token`; with `overlap`, it is the one before that is committed."""
        oldest, drawn = self._in_flight = self._in_flight or self._launch(token)
        self._in_flight = self._launch(token) if self._overlap else None
        return oldest, self.scheduler.commit(oldest, [*drawn.values()])

    def _launch(self, token: int) -> tuple[StepPlan, dict[Key, int]]:
        before = self._in_flight[1] if self._in_flight else {}
        plan = self.scheduler.schedule()
        self.memory.execute(plan, before)
        self._written = {
            request.block_ids[position // BLOCK]
            for request, num_tokens, _ in plan.sequences
            for position in range(request.num_computed_tokens, request.num_computed_tokens + num_tokens)
        }
        self.scheduler.advance(plan)
        return plan, {seq.request.key: token for seq in plan.sequences if seq.sample}

    def assert_intact(self, other_holders: Sequence[Sequence[int]] = ()) -> None:
        """Besides the books: what the step in flight writes is held for it, or for the request that it is of."""
        holders = self.scheduler.holders()
        assert self.blocks.pool.check_integrity([*holders, *other_holders]) == []
        assert self.scheduler.check_swap_space() == []
        if self._in_flight:
            assert self._written <= {block for blocks in holders for block in blocks}
            assert self._written.isdisjoint(block for blocks in other_holders for block in blocks)


def commit(scheduler: Scheduler, plan: StepPlan, token: int = 1) -> list[Advanced]:
    scheduler.advance(plan)
    return scheduler.commit(plan, [token for seq in plan.sequences if seq.sample])


def step(scheduler: Scheduler, token: int = 1) -> tuple[StepPlan, list[Advanced]]:
    plan = scheduler.schedule()
    return plan, commit(scheduler, plan, token)


class Memory:
    """What the KV pool and the swap space would hold: for each slot, the tokens up to the one whose KV is in it."""

    def __init__(self) -> None:
        self.device: dict[int, dict[int, tuple[int, ...]]] = {}
        self.host: dict[int, dict[int, tuple[int, ...]]] = {}

    def execute(self, plan: StepPlan, unknown: Mapping[Key, int] = MappingProxyType({})) -> None:
        """Makes the copies and computes; asserts that each sequence finds all its earlier KV in its blocks.

        `unknown`: tokens that a step in flight has drawn.
        """
        for device_block, host_block in plan.copies.outs:
            self.host[host_block] = dict(self.device.get(device_block, {}))
        for source, target in plan.copies.within:
            self.device[target] = dict(self.device[source])
        for host_block, device_block in plan.copies.ins:
            self.device[device_block] = dict(self.host[host_block])
        written: set[int] = set()
        for request, num_tokens, _ in plan.sequences:
            end = request.num_computed_tokens + num_tokens
            blocks = set(request.block_ids[request.num_computed_tokens // BLOCK : -(-end // BLOCK)])
            assert not request.shares_last_block
            assert not written & blocks, request.key
            written |= blocks
            self.write(request, request.num_computed_tokens, num_tokens, unknown.get(request.key))
        for request, _, _ in plan.sequences:
            for position in range(request.num_computed_tokens):
                found = self.device[request.block_ids[position // BLOCK]].get(position % BLOCK)
                assert found == tuple(request.tokens[: position + 1]), (request.key, position)

    def write(self, request: Request, start: int, num_tokens: int, unknown: int | None = None) -> None:
        """As if `num_tokens` tokens from `start` on were computed."""
        tokens = request.tokens if unknown is None else [*request.tokens, unknown]
        assert start + num_tokens <= len(tokens)
        for position in range(start, start + num_tokens):
            block = self.device.setdefault(request.block_ids[position // BLOCK], {})
            block[position % BLOCK] = tuple(tokens[: position + 1])
