"""Both schedulers, case by case: chunks, ends, prefix hits, order, preemption; test_scheduler_machine.py is random."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.types import FinishReason
from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.decode import DecodeScheduler
from engine.scheduler.policy import PriorityPolicy
from engine.scheduler.prefill import PrefillScheduler
from tests.fakes.scheduling import BLOCK, MAX_LEN, STOP, DecodeFixture, make_request, step


def make_decode(num_blocks: int = 32, budget: int = 16, seqs: int = 8) -> tuple[DecodeScheduler, RequestBlocks]:
    fixture = DecodeFixture(num_blocks, SchedulerConfig(budget, seqs, growth_reserve_blocks=1))
    return fixture.scheduler, fixture.blocks


def test_prefill_is_chunked_and_mixed_with_decodes() -> None:
    scheduler, _ = make_decode(budget=8)
    scheduler.add(make_request("a", [1] * 5))
    assert [seq.num_tokens for seq in step(scheduler)[0].sequences] == [5]
    scheduler.add(make_request("b", [2] * 20))
    assert [seq.num_tokens for seq in step(scheduler)[0].sequences] == [1, 7]
    plan, advanced = step(scheduler)
    assert [seq.num_tokens for seq in plan.sequences] == [1, 7]
    assert [item.token for item in advanced] == [1, None]
    assert [seq.sample for seq in step(scheduler)[0].sequences] == [True, True]


def test_a_long_prefill_never_holds_up_a_running_decode() -> None:
    scheduler, _ = make_decode(budget=4)
    scheduler.add(make_request("long", [2] * 30))
    step(scheduler)
    short = make_request("short", [3], max_tokens=3)
    scheduler.add(short)
    seen = 0
    for _ in range(12):
        seen += sum(item.request is short for item in step(scheduler)[1])
    assert seen == 3


def test_finishes_by_length_stop_and_context() -> None:
    scheduler, blocks = make_decode()
    request = make_request("a", [1], max_tokens=2)
    scheduler.add(request)
    assert step(scheduler)[1][0].finish is None
    assert step(scheduler)[1][0].finish is FinishReason.LENGTH
    scheduler.add(make_request("b", [1, 2]))
    assert step(scheduler, STOP)[1][0].finish is FinishReason.STOP
    scheduler.add(make_request("c", [1] * 15, max_tokens=1000))
    finish, rounds = None, 0
    while finish is None:
        finish = step(scheduler)[1][0].finish
        rounds += 1
    assert (finish, rounds) == (FinishReason.LENGTH, MAX_LEN - 15)
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert blocks.pool.check_integrity([]) == []


def test_second_request_hits_the_prefix_but_computes_its_last_token() -> None:
    scheduler, blocks = make_decode()
    prompt = list(range(16))
    scheduler.add(make_request("a", prompt, max_tokens=1))
    step(scheduler)
    again = make_request("b", prompt, max_tokens=1)
    scheduler.add(again)
    plan, _ = step(scheduler)
    assert plan.sequences[0].num_tokens == 4  # a full hit of 4 blocks, less the last one
    assert again.num_cached_tokens == 12
    assert (blocks.num_query_tokens, blocks.num_hit_tokens) == (32, 12)


@pytest.mark.parametrize("swap_blocks", [0, 8])
def test_preempts_the_youngest_and_gets_its_kv_back(swap_blocks: int) -> None:
    engine = DecodeFixture(4, SchedulerConfig(64, 8, growth_reserve_blocks=1), swap_blocks)
    old, young = make_request("old", [1] * 4, max_tokens=12), make_request("young", [2] * 4, max_tokens=6)
    engine.scheduler.add(old)
    engine.scheduler.add(young)
    ended: list[str] = []
    num_prompt_tokens = 0
    for _ in range(40):
        plan, advanced = engine.step()
        num_prompt_tokens += sum(seq.num_tokens for seq in plan.sequences if seq.num_tokens > 1)
        ended += [item.request.key[0] for item in advanced if item.finish]
        engine.assert_intact()
    assert ended == ["old", "young"]
    assert engine.preemption.num_preemptions == 1
    assert engine.preemption.num_swaps == (1 if swap_blocks else 0)
    assert young.num_output_tokens == 6
    assert old.preempted_unix_ns == []
    assert (num_prompt_tokens == 8) == (swap_blocks > 0)  # both prompts once, or some of it twice
    assert engine.preemption.space.num_used == 0


def test_swaps_only_what_the_host_has_room_for() -> None:
    engine = DecodeFixture(4, SchedulerConfig(64, 8, growth_reserve_blocks=1), swap_blocks=1)
    engine.scheduler.add(make_request("old", [1] * 4, max_tokens=12))
    engine.scheduler.add(make_request("young", [2] * 4, max_tokens=6))
    while engine.scheduler.num_running or engine.scheduler.num_waiting:
        engine.step()
        engine.assert_intact()
    assert (engine.preemption.num_preemptions, engine.preemption.num_swaps) == (1, 0)


def test_aborting_a_swapped_out_request_frees_the_host_memory() -> None:
    engine = DecodeFixture(4, SchedulerConfig(64, 8, growth_reserve_blocks=1), swap_blocks=8)
    old, young = make_request("old", [1] * 4, max_tokens=12), make_request("young", [2] * 4, max_tokens=6)
    engine.scheduler.add(old)
    engine.scheduler.add(young)
    while not engine.preemption.num_swaps:
        engine.step()
    assert engine.preemption.space.num_used
    assert engine.scheduler.remove(young.key) is young
    assert engine.preemption.space.num_used == 0
    engine.assert_intact()


def test_preempts_the_lowest_priority_however_long_it_runs() -> None:
    policy = PriorityPolicy(aging_s=10, clock=lambda: 0.0)
    engine = DecodeFixture(4, SchedulerConfig(64, 8, growth_reserve_blocks=1), policy=policy)
    urgent = make_request("urgent", [1] * 4, max_tokens=12, priority=-1)
    patient = make_request("patient", [2] * 4, max_tokens=6, priority=5)
    engine.scheduler.add(patient)
    engine.step()
    engine.scheduler.add(urgent)
    ended = []
    while engine.scheduler.num_running or engine.scheduler.num_waiting:
        ended += [item.request.key[0] for item in engine.step()[1] if item.finish]
    assert ended == ["urgent", "patient"]
    assert patient.preempted_unix_ns
    assert not urgent.preempted_unix_ns


def test_waiting_requests_start_by_priority_then_arrival() -> None:
    policy = PriorityPolicy(aging_s=10, clock=lambda: 0.0)
    engine = DecodeFixture(config=SchedulerConfig(16, 1), policy=policy)
    for name, priority in (("c", 3), ("a", -3), ("b", 0), ("b2", 0)):
        engine.scheduler.add(make_request(name, [1], max_tokens=1, priority=priority))
    assert [engine.step()[1][0].request.key[0] for _ in range(4)] == ["a", "b", "b2", "c"]


@settings(max_examples=40, deadline=None)
@given(priority=st.integers(-3, 3), others=st.lists(st.integers(-3, 3), min_size=150, max_size=150))
def test_aging_serves_the_lowest_priority_in_time(priority: int, others: list[int]) -> None:
    """One request comes each second and every other second one is served: without aging the worst waits for ever."""
    now, aging_s, step_s = 0.0, 5.0, 2.0
    engine = DecodeFixture(config=SchedulerConfig(16, 1), policy=PriorityPolicy(aging_s, lambda: now))
    request = make_request("patient", [1], max_tokens=1, priority=priority)
    engine.scheduler.add(request)
    # Those before it came at most so much later than it, one a second; each takes one step.
    overtaking_s = (priority - -3) * aging_s
    deadline_s = step_s * (overtaking_s + 2)
    for arrival, other in enumerate(others):
        engine.scheduler.add(make_request(f"other-{arrival}", [2], max_tokens=1, priority=other))
        now += 1.0
        if arrival % step_s:
            continue
        if any(item.request is request for item in engine.step()[1]):
            assert now <= deadline_s
            return
    raise AssertionError(f"priority {priority} was not served within {now} s")


def test_short_prompts_get_past_a_long_one_that_fills_the_step_otherwise() -> None:
    engine = DecodeFixture(config=SchedulerConfig(16, 8, long_prefill_token_threshold=8))
    engine.scheduler.add(make_request("long", [1] * 40))
    assert [seq.num_tokens for seq in engine.step()[0].sequences] == [16]
    engine.scheduler.add(make_request("short", [2] * 6))
    engine.scheduler.add(make_request("long too", [3] * 40))
    assert [seq.num_tokens for seq in engine.step()[0].sequences] == [10, 6]
    assert [seq.num_tokens for seq in engine.step()[0].sequences] == [1, 14]


def test_admitted_requests_start_without_computing_their_prompt() -> None:
    scheduler, blocks = make_decode()
    request = make_request("a", [1] * 8)
    assert blocks.grow(request, 8)
    request.num_computed_tokens = 8
    request.tokens.append(5)
    scheduler.admit(request)
    plan, _ = step(scheduler)
    assert [(seq.num_tokens, seq.sample) for seq in plan.sequences] == [(1, True)]


def test_blocks_held_by_waiting_requests_do_not_stop_everything() -> None:
    scheduler, blocks = make_decode(num_blocks=4)
    for name in ("a", "b"):
        request = make_request(name, [ord(name)] * 8, max_tokens=4)
        assert blocks.grow(request, 8)
        request.num_computed_tokens = 8
        blocks.register(request)
        request.tokens.append(5)
        scheduler.admit(request)
    ended = []
    for _ in range(20):
        ended += [item.request.key[0] for item in step(scheduler)[1] if item.finish]
    assert sorted(ended) == ["a", "b"]


def test_prefill_chunks_end_on_block_borders_and_the_last_is_sampled() -> None:
    blocks = RequestBlocks(BlockPool(32), BLOCK)
    scheduler = PrefillScheduler(SchedulerConfig(10, 8), blocks, MAX_LEN)
    scheduler.add(make_request("a", [1] * 21))
    chunks = []
    while scheduler.num_running or scheduler.num_waiting:
        plan, _ = step(scheduler)
        chunks.append([(seq.num_tokens, seq.sample) for seq in plan.sequences])
    assert chunks == [[(8, False)], [(8, False)], [(5, True)]]


def test_prefill_waits_for_blocks_instead_of_stalling_half_way() -> None:
    blocks = RequestBlocks(BlockPool(6), BLOCK)
    scheduler = PrefillScheduler(SchedulerConfig(64, 8), blocks, MAX_LEN)
    first, second = make_request("a", [1] * 16), make_request("b", [2] * 16)
    scheduler.add(first)
    scheduler.add(second)
    assert [seq.request for seq in step(scheduler)[0].sequences] == [first]
    assert scheduler.schedule().sequences == ()
    blocks.release(first)
    assert [seq.request for seq in step(scheduler)[0].sequences] == [second]


@pytest.mark.parametrize("overlap", [False, True])
def test_output_can_be_found_when_its_request_has_ended(overlap: bool) -> None:
    engine = DecodeFixture(overlap=overlap)
    first = make_request("a", [1] * 6, max_tokens=7)
    engine.scheduler.add(first)
    while not first.is_over:
        engine.step()
    engine.assert_intact()
    assert engine.blocks.pool.count_hits(first.hashes) == 3  # 6 + 6 tokens; the last one's KV was never computed
    again = make_request("b", first.tokens, max_tokens=1)
    engine.scheduler.add(again)
    engine.step()
    assert again.num_cached_tokens == 12


@pytest.mark.parametrize("overlap", [False, True])
def test_output_of_one_taken_out_can_be_found_but_not_what_a_step_in_flight_computes(overlap: bool) -> None:
    engine = DecodeFixture(overlap=overlap)
    request = make_request("a", [1] * 3, max_tokens=20)
    engine.scheduler.add(request)
    for _ in range(5):
        engine.step()
    assert len(request.tokens) == 8  # the last one's KV is not there, or a step in flight computes it
    engine.scheduler.remove(request.key)
    engine.blocks.release(request)
    request.update_hashes(BLOCK)
    assert len(request.hashes) == 2
    assert engine.blocks.pool.count_hits(request.hashes) == 1
    engine.step()
    engine.assert_intact()


@pytest.mark.parametrize("overlap", [False, True])
def test_the_last_one_gives_way_when_all_stall_because_of_a_waiting_follower(overlap: bool) -> None:
    policy = PriorityPolicy(aging_s=10, clock=lambda: 0.0)
    engine = DecodeFixture(4, SchedulerConfig(16, 2, growth_reserve_blocks=0), policy=policy, overlap=overlap)
    last = make_request("last", [1] * 4, max_tokens=6, priority=1)
    leader = make_request("leader", [2] * 6, max_tokens=1, priority=1)
    follower = make_request("follower", leader.tokens, max_tokens=3)
    engine.scheduler.add(last)
    engine.scheduler.add(leader)
    engine.scheduler.add_fork(follower, leader)
    for _ in range(40):
        engine.step()
        engine.assert_intact()
    assert last.is_over
    assert follower.is_over
    assert engine.preemption.num_preemptions == 1
