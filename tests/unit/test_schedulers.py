"""Both schedulers conserve blocks, keep to their budget, and end every request exactly once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.block_hash import root_hash
from baton.types import FinishReason, SamplingParams
from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, StepPlan
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.decode import DecodeScheduler
from engine.scheduler.prefill import PrefillScheduler

BLOCK = 4
MAX_LEN = 64
STOP = 7


def make_request(name: str, prompt: list[int], max_tokens: int = 4) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=(STOP,))
    return Request((name, 1), len(prompt), sampling, list(prompt), 0, root_hash("model"))


def make_decode(num_blocks: int = 32, budget: int = 16, seqs: int = 8) -> tuple[DecodeScheduler, RequestBlocks]:
    blocks = RequestBlocks(BlockPool(num_blocks), BLOCK)
    return DecodeScheduler(SchedulerConfig(budget, seqs, growth_reserve_blocks=1), blocks, MAX_LEN), blocks


def step(scheduler: Scheduler, token: int = 1) -> tuple[StepPlan, list[Advanced]]:
    plan = scheduler.schedule()
    return plan, scheduler.commit(plan, {seq.request.key: token for seq in plan.sequences if seq.sample})


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


def test_preempts_the_youngest_and_recomputes_it() -> None:
    scheduler, blocks = make_decode(num_blocks=4, budget=64)
    old, young = make_request("old", [1] * 4, max_tokens=12), make_request("young", [2] * 4, max_tokens=6)
    scheduler.add(old)
    scheduler.add(young)
    ended: list[str] = []
    for _ in range(40):
        ended += [item.request.key[0] for item in step(scheduler)[1] if item.finish]
        assert blocks.pool.check_integrity(scheduler.holders()) == []
    assert ended == ["old", "young"]
    assert scheduler.num_preemptions > 0
    assert young.num_output_tokens == 6
    assert old.preempted_unix_ns == []


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


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_arrivals_and_aborts(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    budget = rng.choice([4, 9, 32])
    blocks = RequestBlocks(BlockPool(rng.choice([16, 17, 24, 64])), BLOCK)
    config = SchedulerConfig(budget, rng.choice([4, 3, 2]), growth_reserve_blocks=rng.choice([0, 2]))
    scheduler: Scheduler = (
        DecodeScheduler(config, blocks, MAX_LEN) if kind == "decode" else PrefillScheduler(config, blocks, MAX_LEN)
    )
    ends: dict[Key, int] = {}
    open_requests: dict[Key, Request] = {}
    for round_number in range(400):
        if round_number < 60 and rng.random() < 0.5:
            length = rng.randint(1, MAX_LEN - 1)
            prompt = [rng.choice([0, 0, 0, 1])] * min(8, length) + [
                rng.randint(0, 3) for _ in range(max(0, length - 8))
            ]
            request = make_request(str(round_number), prompt, rng.randint(1, 20))
            open_requests[request.key] = request
            scheduler.add(request)
        if open_requests and rng.random() < 0.05:
            key = rng.choice(list(open_requests))
            removed = scheduler.remove(key)
            assert removed is open_requests.pop(key)
            blocks.release(removed)
            ends[key] = ends.get(key, 0) + 1
        plan, advanced = step(scheduler, rng.choice([1, 2, STOP]))
        assert plan.num_tokens <= budget
        for item in advanced:
            over = item.finish if kind == "decode" else item.token is not None
            if over:
                ends[item.request.key] = ends.get(item.request.key, 0) + 1
                del open_requests[item.request.key]
                blocks.release(item.request)
        assert blocks.pool.check_integrity(scheduler.holders()) == []
        if round_number >= 60 and not open_requests:
            break
    assert not open_requests
    assert set(ends.values()) <= {1}
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert blocks.pool.stats().active == 0
