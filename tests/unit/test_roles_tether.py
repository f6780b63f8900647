"""Writers that are stopped, gone or not heard: what decode keeps for how long, and what prefill does not post."""

from pathlib import Path

import pytest

from baton.errors import BatonError, ErrorCode
from engine.messages import Failed, Finished
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import DECODE_LEASE, Clock, Pair, inject, of

LEASE_S = 30.0
FENCE_S = LEASE_S + DECODE_LEASE.longest_write_s + DECODE_LEASE.clock_margin_s


@pytest.fixture
def pair(tiny_llama: Path, clock: Clock) -> Pair:
    return Pair(tiny_llama, lease_s=LEASE_S)


def let_decode_alone(pair: Pair, rounds: int = 3) -> None:
    """Prefill is stopped."""
    for _ in range(rounds):
        pair.decode.poll()


def test_a_stopped_writer_keeps_its_blocks_in_quarantine(pair: Pair, clock: Clock) -> None:
    granted = pair.start("a")
    while not pair.sender.posted:
        pair.prefill.poll()
        pair.prefill.step()
    clock.skip(FENCE_S + 1000)
    let_decode_alone(pair)
    assert pair.decode.stats().blocks.quarantined == len(granted.grant.block_ids)
    pair.pump(3)  # it goes on, and sees that the lease is over
    assert of(pair.prefill_events, "a", Failed)
    pair.assert_at_rest()


def test_a_dead_writer_does_not(pair: Pair, clock: Clock) -> None:
    pair.start("a")
    while not pair.sender.posted:
        pair.prefill.poll()
        pair.prefill.step()
    pair.sender.close()
    clock.skip(FENCE_S + 1)
    let_decode_alone(pair)
    assert pair.decode.stats().blocks.quarantined == 0


def test_a_grant_that_was_never_begun_is_free_by_the_clock(pair: Pair, clock: Clock) -> None:
    pair.reserve("a")
    clock.skip(FENCE_S + 1)
    let_decode_alone(pair)
    assert pair.decode.stats().blocks.quarantined == 0


def test_a_write_that_never_ends_keeps_its_blocks_until_it_has(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.HOLD)
    granted = pair.start("a")
    pair.pump(2)
    clock.skip(FENCE_S + 1)
    pair.pump(3)
    assert of(pair.prefill_events, "a", Failed)
    assert pair.decode.stats().blocks.quarantined == len(granted.grant.block_ids)
    pair.network.release_held()
    pair.pump(3)
    pair.assert_at_rest()


def test_a_failed_write_ends_with_its_connection(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.LATE)
    pair.start("a")
    pair.pump()
    assert pair.sender.disconnected == ["decode/life-1"]
    clock.skip(FENCE_S + 1)
    pair.pump(2)
    pair.assert_at_rest()


def test_nothing_is_posted_before_decode_knows(pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.sender, "begin", lambda *_: False)
    pair.start("a")
    pair.pump()
    assert pair.sender.posted == []
    assert pair.prefill.idle_s() < 0.01
    monkeypatch.undo()
    pair.pump()
    assert len(pair.tokens("a")) == 6
    assert of(pair.prefill_events, "a", Finished)
    pair.assert_at_rest()


def test_a_decode_worker_that_does_not_listen_is_not_waited_for(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.sender, "begin", lambda *_: False)
    pair.start("a")
    pair.pump()
    clock.skip(6)  # longer than a write may take
    pair.pump(1)
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert failed.code is ErrorCode.UNAVAILABLE
    assert "does not listen" in failed.message
    assert pair.sender.posted == []
    assert pair.sender.disconnected == ["decode/life-1"]
    assert pair.prefill.stats().blocks.active == 0


def test_a_broken_tether_fails_its_requests_and_is_made_anew(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = pair.sender.begin

    def broken(peer_id: str, grant_id: str) -> bool:
        if pair.sender.posted:
            raise BatonError(ErrorCode.UNAVAILABLE, "the tether is broken")
        return begin(peer_id, grant_id)

    monkeypatch.setattr(pair.sender, "begin", broken)
    pair.start("a")
    pair.pump()
    (failed,) = of(pair.prefill_events, "a", Failed)
    assert (failed.code, failed.message) == (ErrorCode.UNAVAILABLE, "the tether is broken")
    assert len(pair.sender.posted) == 1
    monkeypatch.setattr(pair.sender, "begin", begin)
    clock.skip(FENCE_S + 1)
    pair.pump(2)
    pair.start("b")
    pair.pump()
    assert len(pair.tokens("b")) == 6
    assert pair.sender.connected == ["decode/life-1"] * 2
    pair.assert_at_rest()
