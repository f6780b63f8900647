"""Writes that fail, land late or never end: what prefill says of them, what it keeps, and what it does not post."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from baton.errors import ErrorCode
from baton.types import SamplingParams
from engine import handover
from engine.config import LeaseConfig
from engine.messages import Abort, Aborted, Failed, Finished, Release, Tokens
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import PROMPT, Clock, Pair, inject, of

LIMIT_S = 5.05  # longest write and clock margin of PREFILL_LEASE


def abort(pair: Pair, name: str = "a") -> list[Aborted]:
    """What has been said so far, after another abort."""
    pair.prefill.handle(Abort(name, 1))
    pair.pump(1)
    return of(pair.prefill_events, name, Aborted)


def test_a_failed_write_is_remembered_until_decodes_quarantine_is_over(tiny_llama: Path, clock: Clock) -> None:
    pair = Pair(tiny_llama, lease_s=10, prefill_lease=LeaseConfig(longest_write_s=4, clock_margin_s=1))
    inject(pair, 0, Fault.LATE)
    pair.start("a")
    pair.pump()
    clock.skip(10)
    pair.pump(1)
    assert not abort(pair)[-1].fenced
    clock.skip(4 + 1)  # decode frees the blocks from now on, by its clock, which can be behind by the margin
    pair.pump(1)
    assert not abort(pair)[-1].fenced
    clock.skip(1)
    pair.pump(1)
    assert abort(pair)[-1].fenced
    pair.close()


@pytest.mark.parametrize("length", [20, 16])  # a chunk is sent first, or only the last write
def test_nothing_is_posted_when_the_lease_ends_during_the_digest(
    tiny_llama: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    pair = Pair(tiny_llama, lease_s=10)
    digest = handover.kv_digest

    def slow_digest(pool: Tensor, block_ids: Sequence[int], start_token: int, num_tokens: int) -> int:
        clock.skip(10)
        return digest(pool, block_ids, start_token, num_tokens)

    monkeypatch.setattr(handover, "kv_digest", slow_digest)
    pair.start("a", PROMPT[:length])
    pair.pump(5)
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert "lease ran out" in failed.message
    assert pair.sender.posted == []
    assert pair.prefill.stats().blocks.active == 0
    pair.close()


@pytest.mark.parametrize("nth_write", [0, 2])
def test_a_write_that_never_ends_fails_its_request_unfenced(pair: Pair, clock: Clock, nth_write: int) -> None:
    inject(pair, nth_write, Fault.HOLD)
    granted = pair.start("a")
    pair.pump()
    assert not of(pair.prefill_events, "a", Failed)
    clock.skip(LIMIT_S)
    pair.pump(1)
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert failed.code is ErrorCode.UNAVAILABLE
    assert "has taken more than 5.05 s" in failed.message
    assert "--longest-write-s" in failed.message
    (aborted,) = abort(pair)
    assert not aborted.fenced
    pair.decode.handle(Release(granted.grant.grant_id, aborted.fenced))
    # The connector may still read the blocks.
    assert pair.prefill.stats().blocks.active >= len(granted.grant.block_ids)
    assert pair.prefill.stats().running == 0
    assert pair.prefill.check_integrity() == []
    pair.network.release_held()
    pair.pump(1)
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()
    assert len(of(pair.prefill_events, "a", Failed)) == 1


def test_an_abort_does_not_wait_for_a_write_that_never_ends(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.HOLD)
    pair.start("a")
    pair.pump(2)
    assert abort(pair) == []
    clock.skip(LIMIT_S)
    pair.pump(1)
    assert [aborted.fenced for aborted in of(pair.prefill_events, "a", Aborted)] == [False]
    assert not of(pair.prefill_events, "a", Failed)
    assert pair.prefill.stats().blocks.active == 6
    pair.network.release_held()
    pair.pump(1)
    assert not abort(pair)[-1].fenced  # decode waits for the quarantine's end by now
    assert pair.prefill.stats().blocks.active == 0


def test_an_answer_of_one_token_is_not_lost_to_a_write_that_never_ends(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.HOLD)
    pair.start("a", sampling=SamplingParams(temperature=0, max_tokens=1))
    pair.pump(10)
    clock.skip(LIMIT_S)
    pair.pump(1)
    assert len(of(pair.prefill_events, "a", Tokens)) == len(of(pair.prefill_events, "a", Finished)) == 1
    assert not abort(pair)[0].fenced
    pair.network.release_held()


def test_blocks_of_a_write_that_never_ends_are_not_written_over(tiny_llama: Path, clock: Clock) -> None:
    """The same prompt hits them, and others find less room; when the write ends, decode's copy is as it was sent."""
    pair = Pair(tiny_llama, lease_s=20)
    inject(pair, 2, Fault.HOLD)
    granted = pair.start("a")
    pair.pump()
    clock.skip(LIMIT_S)
    pair.pump(1)
    held = {block for blocks in pair.prefill._handovers.holders() for block in blocks}
    pool = pair.prefill.context.runner.pool
    before = pool[sorted(held)].clone()
    pair.start_decode("life-2")
    for number in range(8):
        pair.start(f"b{number}", tuple(range(number * 20, number * 20 + 100)))
        pair.pump(20)
        assert len(pair.tokens(f"b{number}")) == 6
    assert len(held) == len(granted.grant.block_ids) == 6
    assert (pool[sorted(held)] == before).all()
    pair.network.release_held()
    pair.pump(1)
    pair.assert_at_rest()


def test_a_slow_write_within_its_limit_is_waited_for(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.HOLD)
    pair.start("a")
    pair.pump(2)
    clock.skip(LIMIT_S - 1)
    pair.pump(2)
    pair.network.release_held()
    pair.pump()
    assert len(pair.tokens("a")) == 6
    pair.assert_at_rest()


def test_a_long_step_does_not_count_against_writes_that_have_ended_meanwhile(pair: Pair, clock: Clock) -> None:
    pair.start("a")
    while not pair.sender.posted:
        pair.prefill.poll()
        pair.prefill.step()
    clock.skip(LIMIT_S + 1)
    pair.pump()
    assert len(pair.tokens("a")) == 6
    pair.assert_at_rest()
