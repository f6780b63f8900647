"""Prefill and decode roles over the in-process connector: one worker's tokens, and no leak whatever goes wrong."""

import time
from pathlib import Path

import msgspec
import pytest

from baton.convert import decode_kv_ready, encode_kv_ready
from baton.errors import ErrorCode
from baton.types import FinishReason, KvReady, SamplingParams, WorkerRef
from engine.messages import (
    Abort,
    Aborted,
    Admitted,
    Failed,
    Finished,
    Refused,
    Release,
    Reserve,
    Tokens,
)
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import (
    BLOCK,
    DECODE_LEASE,
    GREEDY,
    PROMPT,
    SEEDED,
    Clock,
    Pair,
    inject,
    local_tokens,
    of,
    turn,
)

pytestmark = pytest.mark.usefixtures("overlap")

LEASE_S = DECODE_LEASE.lease_s
QUARANTINE_S = DECODE_LEASE.longest_write_s + DECODE_LEASE.clock_margin_s


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 47])
def test_apart_gives_the_tokens_of_one_worker(
    pair: Pair, tiny_llama: Path, length: int, sampling: SamplingParams
) -> None:
    prompt = PROMPT[:length]
    granted = pair.start("a", prompt, sampling)
    pair.pump()
    assert pair.tokens("a") == local_tokens(tiny_llama, prompt, sampling)
    assert [event.output_position for event in of(pair.decode_events, "a", Tokens)] == [1, 2, 3, 4, 5]
    (done,) = of(pair.prefill_events, "a", Finished)
    assert done.transfer.blocks == len(granted.grant.block_ids) == -(-length // BLOCK)
    assert of(pair.decode_events, "a", Finished)[0].reason is FinishReason.LENGTH
    pair.assert_at_rest()


def test_first_token_leaves_prefill_before_decode_admits(pair: Pair) -> None:
    pair.start("a")
    while not of(pair.prefill_events, "a", Tokens):
        turn(pair.prefill)
    assert not of(pair.decode_events, "a", Admitted)


def test_chunks_travel_while_later_ones_compute(pair: Pair) -> None:
    pair.start("a")
    pair.pump()
    (done,) = of(pair.prefill_events, "a", Finished)
    assert [write.blocks for write in done.timeline.writes] == [2, 2, 2]
    assert [chunk.num_tokens for chunk in done.timeline.prefill_chunks] == [16, 16, 15]


def test_prefix_hits_on_both_sides(pair: Pair, tiny_llama: Path) -> None:
    pair.start("a")
    pair.pump()
    granted = pair.start("b", (*PROMPT[:40], 200, 201, 202))
    assert (granted.grant.first_block, granted.cached_tokens) == (5, 40)
    pair.pump()
    assert pair.tokens("b") == local_tokens(tiny_llama, (*PROMPT[:40], 200, 201, 202), GREEDY)
    assert of(pair.prefill_events, "b", Tokens)[0].cached_tokens == 40
    assert of(pair.prefill_events, "b", Finished)[0].transfer.blocks == 1
    pair.assert_at_rest()


def test_decode_lacks_blocks_that_prefill_has_cached(pair: Pair, tiny_llama: Path) -> None:
    pair.start("a")
    pair.pump()
    for block in list(pair.decode.context.pool._cached):  # as if evicted
        pair.decode.context.pool._forget(block)
        del pair.decode.context.pool._cached[block]
        pair.decode.context.pool._free.append(block)
    assert pair.start("b").grant.first_block == 0
    pair.pump()
    assert pair.tokens("b") == local_tokens(tiny_llama, PROMPT, GREEDY)
    pair.assert_at_rest()


def test_the_first_token_may_end_the_request(pair: Pair) -> None:
    granted = pair.start("a", sampling=SamplingParams(temperature=0, max_tokens=1))
    pair.pump()
    (done,) = of(pair.prefill_events, "a", Finished)
    assert done.reason is FinishReason.LENGTH
    assert pair.prefill_events.index(done) == pair.prefill_events.index(of(pair.prefill_events, "a", Tokens)[0]) + 1
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()


@pytest.mark.parametrize("nth_write", [0, 1, 2])
def test_corrupted_kv_is_never_decoded_from(pair: Pair, nth_write: int) -> None:
    inject(pair, nth_write, Fault.CORRUPT)
    pair.start("a")
    pair.pump()
    (failed,) = of(pair.decode_events, "a", Failed)
    assert failed.code is ErrorCode.UNAVAILABLE
    assert "digest mismatch" in failed.message
    assert not of(pair.decode_events, "a", Tokens)
    assert pair.decode.stats().digest_mismatches == 1


@pytest.mark.parametrize("nth_write", [0, 2])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.TEAR])
def test_failed_write_fails_the_request_on_prefill(pair: Pair, nth_write: int, fault: Fault) -> None:
    inject(pair, nth_write, fault)
    granted = pair.start("a")
    pair.pump()
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert failed.code is ErrorCode.UNAVAILABLE
    assert "KV write to decode worker decode failed" in failed.message
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()


def test_a_write_that_failed_may_still_land_so_it_is_not_fenced(pair: Pair) -> None:
    inject(pair, 0, Fault.LATE)
    granted = pair.start("a")
    pair.pump()
    assert of(pair.prefill_events, "a", Failed)
    pair.prefill.handle(Abort("a", 1))
    pair.prefill.context.flush()
    (aborted,) = of(pair.prefill_events, "a", Aborted)
    assert not aborted.fenced
    pair.decode.handle(Release(granted.grant.grant_id, aborted.fenced))
    pair.start("b", tuple(range(100, 147)))
    pair.network.release_late()
    pair.pump()
    assert len(pair.tokens("b")) == 6


def test_lost_notification_ends_with_the_lease_and_its_blocks_come_back(pair: Pair, clock: Clock) -> None:
    inject(pair, 2, Fault.LOSE_NOTIFICATION)
    pair.start("a")
    pair.pump()
    clock.skip(LEASE_S)
    pair.pump(2)
    (failed,) = of(pair.decode_events, "a", Failed)
    assert "lease" in failed.message
    assert pair.decode.stats().blocks.quarantined == 6
    clock.skip(QUARANTINE_S)
    pair.pump(2)
    pair.assert_at_rest()


def test_prefill_posts_nothing_after_the_lease(pair: Pair, clock: Clock) -> None:
    pair.start("a")
    clock.skip(LEASE_S)
    pair.pump(10)
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert "lease ran out" in failed.message
    assert failed.timeline.writes == ()
    clock.skip(QUARANTINE_S)
    pair.pump(2)
    pair.assert_at_rest()


def test_repeated_and_stale_notifications_change_nothing(pair: Pair, tiny_llama: Path) -> None:
    inject(pair, 2, Fault.REPEAT_NOTIFICATION)
    pair.start("a")
    pair.pump()
    assert pair.tokens("a") == local_tokens(tiny_llama, PROMPT, GREEDY)
    assert len(of(pair.decode_events, "a", Admitted)) == 1
    pair.assert_at_rest()


def test_ready_of_another_epoch_or_incarnation_is_dropped(pair: Pair) -> None:
    granted = pair.reserve("a")
    ready = KvReady(
        grant_id=granted.grant.grant_id,
        request_id="a",
        epoch=1,
        decode_incarnation="life-1",
        prefill=WorkerRef("prefill", "life-1"),
        digests=(),
        first_token=1,
        sampler_position=1,
        sent_unix_ns=0,
    )
    assert decode_kv_ready(encode_kv_ready(ready)) == ready
    for changes in ({"epoch": 0}, {"decode_incarnation": "life-0"}, {"request_id": "b"}):
        pair.decode._on_ready(msgspec.structs.replace(ready, **changes), time.time_ns())
    assert pair.decode.stats().grants == 1
    pair.decode._on_ready(ready, time.time_ns())  # covers no token at all
    assert of(pair.decode_events, "a", Failed) == []
    pair.decode.context.flush()
    assert "KV digests end at token 0, expected 47" in of(pair.decode_events, "a", Failed)[0].message


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4])
def test_abort_in_any_state_frees_everything(pair: Pair, rounds: int) -> None:
    granted = pair.start("a")
    pair.pump(rounds)
    pair.prefill.handle(Abort("a", 1))
    pair.decode.handle(Abort("a", 1))
    pair.pump(3)
    (aborted,) = of(pair.prefill_events, "a", Aborted)
    assert aborted.fenced
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.pump(3)
    pair.assert_at_rest()


def test_abort_before_a_write_that_then_fails_is_not_fenced(pair: Pair) -> None:
    inject(pair, 0, Fault.FAIL)
    pair.start("a")
    turn(pair.prefill)
    pair.prefill.handle(Abort("a", 1))
    pair.pump(2)
    assert not of(pair.prefill_events, "a", Aborted)[0].fenced


def test_abort_waits_for_the_write_under_way(pair: Pair) -> None:
    inject(pair, 0, Fault.HOLD)
    pair.start("a")
    pair.pump(2)
    pair.prefill.handle(Abort("a", 1))
    pair.pump(3)
    assert not of(pair.prefill_events, "a", Aborted)
    pair.network.release_held()
    pair.pump(2)
    assert of(pair.prefill_events, "a", Aborted)[0].fenced


def test_blocks_of_an_unfenced_grant_are_not_given_to_another(pair: Pair) -> None:
    granted = pair.reserve("a")
    pair.decode.handle(Release(granted.grant.grant_id, fenced=False))
    other = pair.reserve("b", tuple(range(100, 147)))
    assert not set(other.grant.block_ids) & set(granted.grant.block_ids)
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    assert pair.decode.stats().blocks.quarantined == 0


def test_refuses_when_the_growth_reserve_would_suffer(tiny_llama: Path) -> None:
    pair = Pair(tiny_llama, decode_blocks=17)
    pair.reserve("a")
    pair.reserve("b", tuple(range(100, 147)))
    pair.decode.handle(Reserve("c", 1, tuple(range(60, 107)), GREEDY))
    pair.decode.context.flush()
    (refused,) = of(pair.decode_events, "c", Refused)
    assert refused.code is ErrorCode.RESOURCE_EXHAUSTED
    assert refused.retry_after_s
    assert pair.decode.check_integrity() == []


def test_preempted_request_is_recomputed_on_decode(tiny_llama: Path) -> None:
    pair = Pair(tiny_llama, decode_blocks=16)
    long = SamplingParams(temperature=0, max_tokens=30)
    prompts = {"a": PROMPT, "b": tuple(range(100, 147))}
    for name, prompt in prompts.items():
        pair.start(name, prompt, long)
    pair.pump(200)
    assert pair.decode.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert pair.tokens(name) == local_tokens(tiny_llama, prompt, long)
    pair.assert_at_rest()
