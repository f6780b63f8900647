"""Followers: one prompt's KV is computed, sent and stored once, and each answer is what it would be alone."""

from pathlib import Path

import msgspec
import pytest
import torch

from baton.types import Role, SamplingParams
from engine.messages import Abort, Aborted, AddLocal, Event, Finished, Release
from engine.roles.local import LocalRole
from engine.scheduler.base import BlockCopies
from engine.swap_buffer import SwapBuffer
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import BLOCK, PROMPT, Pair, inject, local_tokens, make_context, of, token_ids, turn

LEADER = ("a", 1)
DRAWS = [SamplingParams(temperature=0.9, seed=seed, max_tokens=6 + seed) for seed in range(4)]


def follow(name: str, sampling: SamplingParams, prompt: tuple[int, ...] = PROMPT) -> AddLocal:
    return AddLocal(name, 1, prompt, sampling, fork_of=LEADER)


def finished(events: list[Event], name: str) -> Finished:
    (event,) = of(events, name, Finished)
    return event


def prompt_tokens(events: list[Event], name: str) -> int:
    """How many of a request's prompt tokens were computed here."""
    return sum(chunk.num_tokens for chunk in finished(events, name).timeline.prefill_chunks)


def assert_answers(events: list[Event], folder: Path, prompt: tuple[int, ...] = PROMPT) -> None:
    for index, sampling in enumerate(DRAWS[1:], 1):
        assert token_ids(events, f"follower-{index}") == local_tokens(folder, prompt, sampling)


@pytest.mark.parametrize("length", [1, 2, 8, 9, 47])
def test_followers_have_the_tokens_they_would_have_alone(pair: Pair, tiny_llama: Path, length: int) -> None:
    prompt = PROMPT[:length]
    granted = pair.reserve("a", prompt, DRAWS[0])
    for index, sampling in enumerate(DRAWS[1:], 1):
        pair.decode.handle(follow(f"follower-{index}", sampling, prompt))
    assert pair.decode.stats().waiting == 3
    pair.pump(5)
    assert not of(pair.decode_events, "follower-1", Finished)  # its KV is not there yet
    pair.add_prefill("a", granted, prompt, DRAWS[0])
    pair.pump()
    assert pair.tokens("a") == local_tokens(tiny_llama, prompt, DRAWS[0])
    assert_answers(pair.decode_events, tiny_llama, prompt)
    assert finished(pair.prefill_events, "a").transfer.blocks == -(-length // BLOCK)
    for index in (1, 2, 3):
        assert prompt_tokens(pair.decode_events, f"follower-{index}") == 1
        assert finished(pair.decode_events, f"follower-{index}").cached_tokens == length - 1
    pair.assert_at_rest()


def test_only_the_last_block_is_stored_more_than_once(pair: Pair) -> None:
    pair.start("a", sampling=SamplingParams(seed=1, max_tokens=60))
    for index in (1, 2, 3):
        pair.decode.handle(follow(f"follower-{index}", SamplingParams(seed=index, max_tokens=60)))
    while pair.decode.stats().running < 4:
        pair.pump(1)
    full = (len(PROMPT) - 1) // BLOCK
    own = {tuple(holder[full:]) for holder in pair.decode.scheduler.holders()}
    assert len({tuple(holder[:full]) for holder in pair.decode.scheduler.holders()}) == 1
    assert len({block for blocks in own for block in blocks}) == sum(map(len, own))
    assert pair.decode.stats().blocks.active == full + sum(map(len, own))
    for name in ("a", "follower-1", "follower-2", "follower-3"):
        pair.decode.handle(Abort(name, 1))
    pair.pump()
    pair.assert_at_rest()


@pytest.mark.parametrize("caching", [True, False])
def test_a_leader_that_ends_with_its_first_token_leaves_its_kv(tiny_llama: Path, caching: bool) -> None:
    events: list[Event] = []
    context = make_context(tiny_llama, Role.AGGREGATED, events)
    context.pool._caching = caching
    role = LocalRole(context)
    role.handle(AddLocal(*LEADER, PROMPT, msgspec.structs.replace(DRAWS[0], max_tokens=1)))
    for index, sampling in enumerate(DRAWS[1:], 1):
        role.handle(follow(f"follower-{index}", sampling))
    for _ in range(30):
        turn(role)
        assert role.check_integrity() == []
    assert_answers(events, tiny_llama)
    assert [prompt_tokens(events, name) for name in ("a", "follower-1", "follower-3")] == [len(PROMPT), 1, 1]
    assert role.stats().blocks.active == 0


def test_one_follower_takes_over_from_a_leader_that_ends_on_prefill(pair: Pair, tiny_llama: Path) -> None:
    granted = pair.reserve("a", sampling=DRAWS[0])
    for index, sampling in enumerate(DRAWS[1:], 1):
        pair.decode.handle(follow(f"follower-{index}", sampling))
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.pump()
    assert_answers(pair.decode_events, tiny_llama)
    computed = [prompt_tokens(pair.decode_events, f"follower-{index}") for index in (1, 2, 3)]
    assert computed == [len(PROMPT), 1, 1]
    pair.assert_at_rest()


def test_followers_of_kv_that_arrives_broken_do_not_use_it(pair: Pair, tiny_llama: Path) -> None:
    inject(pair, 0, Fault.CORRUPT)
    pair.start("a", sampling=DRAWS[0])
    for index, sampling in enumerate(DRAWS[1:], 1):
        pair.decode.handle(follow(f"follower-{index}", sampling))
    pair.pump()
    assert pair.decode.stats().digest_mismatches == 1
    assert_answers(pair.decode_events, tiny_llama)


def test_followers_end_alone(pair: Pair, tiny_llama: Path) -> None:
    granted = pair.reserve("a", sampling=DRAWS[0])
    for index, sampling in enumerate(DRAWS[1:], 1):
        pair.decode.handle(follow(f"follower-{index}", sampling))
    pair.decode.handle(Abort("follower-2", 1))
    pair.add_prefill("a", granted, sampling=DRAWS[0])
    pair.pump()
    assert of(pair.decode_events, "follower-2", Aborted)
    assert token_ids(pair.decode_events, "follower-2") == []
    assert token_ids(pair.decode_events, "follower-3") == local_tokens(tiny_llama, PROMPT, DRAWS[3])
    pair.assert_at_rest()


def test_a_follower_that_finds_no_room_waits(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events, blocks=16))
    role.handle(AddLocal(*LEADER, PROMPT, DRAWS[0]))
    for index in range(1, 9):
        role.handle(follow(f"follower-{index}", SamplingParams(temperature=0.9, seed=index, max_tokens=30)))
    for _ in range(300):
        turn(role)
        assert role.check_integrity() == []
    for index in range(1, 9):
        expected = local_tokens(tiny_llama, PROMPT, SamplingParams(temperature=0.9, seed=index, max_tokens=30))
        assert token_ids(events, f"follower-{index}") == expected
    assert role.stats().blocks.active == 0


def test_a_prompt_of_another_request_is_not_shared(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events))
    role.handle(AddLocal(*LEADER, PROMPT, DRAWS[0]))
    other = (*PROMPT[:-2], 99, PROMPT[-1])
    role.handle(follow("other", DRAWS[1], other))
    role.handle(AddLocal("nobody's", 1, PROMPT, DRAWS[2], fork_of=("unknown", 1)))
    for _ in range(30):
        turn(role)
    assert token_ids(events, "other") == local_tokens(tiny_llama, other, DRAWS[1])
    assert token_ids(events, "nobody's") == local_tokens(tiny_llama, PROMPT, DRAWS[2])


def test_blocks_are_copied_within_the_pool_before_host_blocks_come_in() -> None:
    pool = torch.arange(200, dtype=torch.float32).reshape(200, 1, 1, 1, 1, 1).clone()
    buffer = SwapBuffer(pool, 2)
    within = tuple((block, 100 + block) for block in range(100))
    buffer.copy(BlockCopies(outs=((150, 0),), within=within, ins=((0, 3),)))
    assert pool.flatten()[100:].tolist() == list(range(100))
    assert pool[3].item() == 150
