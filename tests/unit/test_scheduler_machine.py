"""Both schedulers under random arrivals, forks, priorities, aborts, grants: nothing is lost and no KV is wrong."""

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.errors import BatonError
from baton.types import KvEndpoint, KvLayout, WorkerRef
from engine.block_pool import BlockPool
from engine.config import LeaseConfig, SchedulerConfig
from engine.context import EngineContext
from engine.grants import GrantTable, OpenGrant
from engine.request import Key, Request
from engine.scheduler.base import Advanced, StepPlan
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.policy import FcfsPolicy, PriorityPolicy, SchedulingPolicy
from engine.scheduler.prefill import PrefillScheduler
from tests.fakes.scheduling import BLOCK, MAX_LEN, STOP, DecodeFixture, Memory, commit, make_request

SECOND_NS = 10**9
LAYOUT = KvLayout(1, 1, 1, BLOCK, "float32", "model")
LEASE = LeaseConfig(lease_s=5, longest_write_s=1, clock_margin_s=1)
prompts = st.builds(
    lambda family, shared, own: [family] * shared + own,
    st.integers(0, 2),
    st.integers(0, 20),
    st.lists(st.integers(0, 3), min_size=1, max_size=15),
)


class SchedulerMachine(RuleBasedStateMachine):
    """What both machines count: every request that came ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.open: dict[Key, Request] = {}
        self.ends: dict[Key, int] = {}
        self.memory = Memory()

    def policy(self, name: str) -> SchedulingPolicy:
        return PriorityPolicy(aging_s=2.0, clock=lambda: self.now) if name == "priority" else FcfsPolicy()

    def new_request(self, prompt: list[int], max_tokens: int, priority: int) -> Request:
        request = make_request(f"r{len(self.ends)}", prompt, max_tokens, priority)
        self.open[request.key] = request
        self.ends[request.key] = 0
        return request

    def ended(self, key: Key) -> None:
        del self.open[key]
        self.ends[key] += 1

    def draw_open(self, data: st.DataObject) -> Request:
        return self.open[data.draw(st.sampled_from(sorted(self.open)))]

    def check_plan(self, plan: StepPlan, config: SchedulerConfig, num_running: int) -> None:
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert len(plan.sequences) == len({seq.request.key for seq in plan.sequences}) <= config.max_num_seqs
        assert num_running <= config.max_num_seqs
        assert all(seq.num_tokens > 0 for seq in plan.sequences)


class DecodeMachine(SchedulerMachine):
    """Local prompts, grants that become admissions, lapse or fail, and followers of either."""

    @initialize(
        num_blocks=st.sampled_from([16, 17, 20]),
        budget=st.sampled_from([9, 32, 64]),
        seqs=st.integers(2, 6),
        reserve=st.sampled_from([0, 1]),
        swap_blocks=st.sampled_from([40, 5, 0]),
        policy=st.sampled_from(["fcfs", "priority"]),
        overlap=st.booleans(),
    )
    def start(
        self, num_blocks: int, budget: int, seqs: int, reserve: int, swap_blocks: int, policy: str, overlap: bool
    ) -> None:
        self.config = SchedulerConfig(budget, min(seqs, budget), growth_reserve_blocks=reserve)
        self.engine = DecodeFixture(num_blocks, self.config, swap_blocks, self.policy(policy), overlap)
        self.engine.memory = self.memory
        context = SimpleNamespace(
            blocks=self.engine.blocks,
            pool=self.engine.blocks.pool,
            config=SimpleNamespace(scheduler=self.config, lease=LEASE, worker=WorkerRef("decode", "life")),
            runner=SimpleNamespace(layout=LAYOUT),
            max_model_len=MAX_LEN,
        )
        self.grants = GrantTable(cast(EngineContext, context), KvEndpoint("none", b""))

    @rule(arrivals=st.lists(st.tuples(prompts, st.integers(1, 40), st.integers(-3, 3)), min_size=1, max_size=4))
    def arrive(self, arrivals: list[tuple[list[int], int, int]]) -> None:
        for prompt, max_tokens, priority in arrivals:
            self.engine.scheduler.add(self.new_request(prompt, max_tokens, priority))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), max_tokens=st.lists(st.integers(1, 40), min_size=1, max_size=3), priority=st.integers(-3, 3))
    def is_followed(self, data: st.DataObject, max_tokens: list[int], priority: int) -> None:
        leader = self.draw_open(data)
        entry = self.grants.by_key(leader.key)
        known = entry.request if entry else self.engine.scheduler.find(leader.key)
        for most in max_tokens:
            request = self.new_request(leader.tokens[: leader.num_prompt_tokens], most, priority)
            if known:
                self.engine.scheduler.add_fork(request, known)
            else:  # the leader is a follower that waits for its own
                self.engine.scheduler.add(request)

    @rule(prompt=prompts, max_tokens=st.integers(2, 40), priority=st.integers(-3, 3))
    def is_reserved(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        scheduler = self.engine.scheduler
        request = self.new_request(prompt, max_tokens, priority)
        try:
            self.grants.reserve(request, scheduler.num_running + scheduler.num_waiting, self.now_ns())
        except BatonError:
            self.ended(request.key)

    @precondition(lambda self: len(self.grants))
    @rule(data=st.data())
    def is_admitted(self, data: st.DataObject) -> None:
        entry = self.draw_grant(data)
        request = self.grants.accept(entry)
        hits = entry.num_hit_blocks * BLOCK
        self.memory.write(request, hits, request.num_prompt_tokens - hits)
        request.num_computed_tokens = request.num_prompt_tokens
        self.engine.blocks.register(request)
        request.tokens.append(1)
        self.engine.scheduler.admit(request)

    @precondition(lambda self: len(self.grants))
    @rule(data=st.data(), fenced=st.booleans())
    def grant_fails(self, data: st.DataObject, fenced: bool) -> None:
        self.close_grant(self.draw_grant(data), fenced)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def is_aborted(self, data: st.DataObject) -> None:
        request = self.draw_open(data)
        if entry := self.grants.by_key(request.key):
            self.close_grant(entry, fenced=True)
            return
        assert self.engine.scheduler.remove(request.key) is request
        self.engine.blocks.release(request)
        self.ended(request.key)

    @rule(swap=st.booleans())
    def costs_change(self, swap: bool) -> None:
        self.engine.costs.swap = swap

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.engine.blocks.pool.expire_quarantine(self.now_ns(), lambda grant_id: False)
        for entry in self.grants.expired(self.now_ns()):
            self.close_grant(entry, fenced=False)

    def close_grant(self, entry: OpenGrant, fenced: bool) -> None:
        self.grants.close(entry, fenced)
        self.engine.scheduler.abandon(entry.request.key)
        self.ended(entry.request.key)

    @rule()
    def cache_is_reset(self) -> None:
        self.engine.blocks.pool.reset_cache()

    @rule(token=st.sampled_from([1, 2]), times=st.integers(1, 15))
    def steps(self, token: int, times: int) -> None:
        for _ in range(times):
            self.step(token)

    @rule()
    def stop_token_is_drawn(self) -> None:
        self.step(STOP)

    def step(self, token: int) -> list[Advanced]:
        plan, advanced = self.engine.step(token)
        scheduler = self.engine.scheduler
        self.check_plan(plan, self.config, scheduler.num_running - scheduler.num_ending)
        for item in advanced:
            if item.finish:
                self.ended(item.request.key)
        return advanced

    def now_ns(self) -> int:
        return int(self.now * SECOND_NS)

    def draw_grant(self, data: st.DataObject) -> OpenGrant:
        keys = sorted(key for key in self.open if self.grants.by_key(key))
        entry = self.grants.by_key(data.draw(st.sampled_from(keys)))
        assert entry is not None
        return entry

    @invariant()
    def accounted_for(self) -> None:
        if hasattr(self, "engine"):
            self.engine.assert_intact(self.grants.holders())

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5):
            self.time_passes(3)  # grants lapse and quarantines end
        # Alone or not, each open request gets a token in every so many steps, or the books were wrong somewhere.
        for _ in range(MAX_LEN * (len(self.open) + 1) * 2):
            if not self.open:
                break
            self.step(1)
        for _ in range(2):  # what is in flight may be of requests that are over
            self.step(1)
        assert not self.open
        assert set(self.ends.values()) <= {1}
        assert self.engine.blocks.pool.stats().active == self.engine.preemption.space.num_used == 0


class PrefillMachine(SchedulerMachine):
    """Prompts whose blocks stay held behind their first token, as by a write that is under way."""

    @initialize(
        num_blocks=st.sampled_from([16, 17, 24, 48]),
        budget=st.sampled_from([4, 9, 32]),
        seqs=st.integers(1, 4),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def start(self, num_blocks: int, budget: int, seqs: int, policy: str) -> None:
        self.config = SchedulerConfig(budget, seqs)
        self.blocks = RequestBlocks(BlockPool(num_blocks), BLOCK)
        self.scheduler = PrefillScheduler(self.config, self.blocks, MAX_LEN, self.policy(policy))
        self.writing: list[Request] = []

    @rule(prompt=prompts, priority=st.integers(-3, 3))
    def arrives(self, prompt: list[int], priority: int) -> None:
        self.scheduler.add(self.new_request(prompt, 4, priority))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def is_aborted(self, data: st.DataObject) -> None:
        request = self.draw_open(data)
        assert self.scheduler.remove(request.key) is request
        self.blocks.release(request)
        self.ended(request.key)

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def write_ends(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.writing))
        self.writing.remove(request)
        self.blocks.release(request)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def steps(self) -> None:
        plan = self.scheduler.schedule()
        self.memory.execute(plan)
        self.check_plan(plan, self.config, self.scheduler.num_running)
        for request, num_tokens, sample in plan.sequences:
            assert sample or (request.num_computed_tokens + num_tokens) % BLOCK == 0
        for item in commit(self.scheduler, plan):
            if item.token is not None:
                self.ended(item.request.key)
                self.writing.append(item.request)

    @invariant()
    def accounted_for(self) -> None:
        if hasattr(self, "scheduler"):
            holders = [*self.scheduler.holders(), *(request.block_ids for request in self.writing)]
            assert self.blocks.pool.check_integrity(holders) == []

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(MAX_LEN * (len(self.open) + 1)):
            if not self.open and not self.writing:
                break
            for request in self.writing:
                self.blocks.release(request)
            self.writing = []
            self.steps()
        assert not self.open
        assert set(self.ends.values()) <= {1}
        assert self.blocks.pool.stats().active == 0


def _test_case(machine: type[RuleBasedStateMachine]) -> Any:
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    return machine.TestCase


TestDecodeMachine = _test_case(DecodeMachine)
TestPrefillMachine = _test_case(PrefillMachine)
