"""Which decode workers a prefill worker stays connected to when they are replaced, fail or hang."""

import re

import msgspec

from baton.errors import ErrorCode
from baton.types import KvEndpoint
from engine.messages import Admitted, Failed, Finished, Release
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import PROMPT, Clock, Pair, inject, of, turn

OTHER_PROMPT = tuple(range(100, 147))
THIRD_PROMPT = tuple(range(200, 247))
LIMIT_S = 5.05  # longest write and clock margin of PREFILL_LEASE


def test_one_connection_serves_all_requests_of_a_life(pair: Pair) -> None:
    for name, prompt in (("a", PROMPT), ("b", OTHER_PROMPT)):
        pair.start(name, prompt)
        pair.pump()
    assert (pair.sender.connected, pair.sender.disconnected) == (["decode/life-1"], [])


def test_another_endpoint_of_a_connected_life_is_refused_by_name(pair: Pair) -> None:
    pair.start("a")
    pair.pump()
    granted = pair.reserve("b", OTHER_PROMPT)
    other = KvEndpoint("inproc", granted.grant.endpoint.metadata + b"x")
    forged = msgspec.structs.replace(granted.grant, endpoint=other)
    pair.add_prefill("b", msgspec.structs.replace(granted, grant=forged), OTHER_PROMPT)
    pair.pump()
    (failed,) = of(pair.prefill_events, "b", Failed)
    assert failed.code is ErrorCode.FAILED_PRECONDITION
    sizes = [len(endpoint.metadata) for endpoint in (other, granted.grant.endpoint)]
    shown = r"decode worker decode, incarnation life-1: got a .* endpoint inproc:{} bytes .* expected inproc:{} bytes"
    assert re.match(shown.format(*sizes), failed.message)
    pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()


def test_a_replaced_life_is_left_at_once_when_nothing_is_open(pair: Pair) -> None:
    for number in (1, 2, 3):
        if number > 1:
            pair.start_decode(f"life-{number}")
        pair.start(f"r{number}", PROMPT)
        pair.pump()
        assert len(pair.tokens(f"r{number}")) == 6
    assert pair.sender.connected == ["decode/life-1", "decode/life-2", "decode/life-3"]
    assert pair.sender.disconnected == ["decode/life-1", "decode/life-2"]


def test_a_replaced_life_is_left_when_its_last_hand_over_has_ended(pair: Pair) -> None:
    inject(pair, 2, Fault.HOLD)
    pair.start("old")
    pair.pump()
    pair.start_decode("life-2")
    pair.start("new", OTHER_PROMPT)
    pair.pump()
    assert len(pair.tokens("new")) == 6
    assert pair.sender.disconnected == []
    pair.network.release_held()
    pair.pump(1)
    assert of(pair.prefill_events, "old", Finished)
    assert pair.sender.disconnected == ["decode/life-1"]


def test_a_late_grant_of_an_older_life_does_not_break_the_newer_one(pair: Pair) -> None:
    old_decode, old = pair.decode, pair.reserve("old")
    pair.start_decode("life-2")
    pair.start("new", OTHER_PROMPT)
    pair.pump(1)
    pair.add_prefill("old", old)
    pair.pump()
    turn(old_decode)
    assert of(pair.prefill_events, "old", Finished)
    assert of(pair.decode_events, "old", Admitted)
    assert len(pair.tokens("new")) == 6
    pair.start("newer", THIRD_PROMPT)
    pair.pump()
    assert len(pair.tokens("newer")) == 6
    assert pair.sender.disconnected[-1] == "decode/life-1"


def test_a_peer_with_a_failed_write_is_connected_afresh(pair: Pair) -> None:
    inject(pair, 0, Fault.FAIL)
    failed = pair.start("a")
    pair.pump()
    assert pair.sender.disconnected == ["decode/life-1"]
    pair.decode.handle(Release(failed.grant.grant_id, fenced=True))
    pair.start("b", OTHER_PROMPT)
    pair.pump()
    assert len(pair.tokens("b")) == 6
    assert pair.sender.connected == ["decode/life-1"] * 2
    pair.assert_at_rest()


def test_a_lost_peer_takes_nothing_new_until_its_last_write_has_ended(pair: Pair) -> None:
    pair.network.inject(Fault.HOLD, Fault.FAIL)
    grants = [pair.start("held", PROMPT[:9]), pair.start("fails", OTHER_PROMPT[:9])]
    pair.pump(6)
    assert of(pair.prefill_events, "fails", Failed)
    posted = len(pair.sender.posted)
    grants.append(pair.start("refused", THIRD_PROMPT))
    pair.pump()
    (refused,) = of(pair.prefill_events, "refused", Failed)
    assert refused.code is ErrorCode.UNAVAILABLE
    assert "a KV write to it has failed or hangs" in refused.message
    assert (len(pair.sender.posted), pair.sender.disconnected) == (posted, [])
    pair.network.release_held()
    pair.pump(2)
    assert of(pair.prefill_events, "held", Finished)  # it had nothing more to write
    assert pair.sender.disconnected == ["decode/life-1"]
    pair.start("again", THIRD_PROMPT)
    pair.pump()
    assert len(pair.tokens("again")) == 6
    for granted in grants[1:]:
        pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()


def test_requests_behind_a_failed_write_fail_with_it_instead_of_being_computed_for_nothing(pair: Pair) -> None:
    pair.network.inject(Fault.FAIL)
    grants = [pair.start(name, prompt) for name, prompt in (("a", PROMPT), ("b", OTHER_PROMPT), ("c", THIRD_PROMPT))]
    pair.pump()
    for name in "abc":
        (failed,) = of(pair.prefill_events, name, Failed)
        assert failed.code is ErrorCode.UNAVAILABLE
        assert "KV write to decode worker decode failed" in failed.message
    assert len(pair.sender.posted) == 1
    for granted in grants:
        pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.assert_at_rest()


def test_a_hung_peer_is_lost_too_and_comes_back_when_it_wakes_up(pair: Pair, clock: Clock) -> None:
    inject(pair, 0, Fault.HOLD)
    grants = [pair.start("hangs"), pair.start("behind", OTHER_PROMPT)]
    pair.pump(2)
    clock.skip(LIMIT_S)
    grants.append(pair.start("late", THIRD_PROMPT))
    pair.pump()
    assert "has taken more than" in of(pair.prefill_events, "hangs", Failed)[0].message
    assert "another KV write" in of(pair.prefill_events, "behind", Failed)[0].message
    assert "another KV write" in of(pair.prefill_events, "late", Failed)[0].message
    assert pair.sender.disconnected == []
    pair.network.release_held()
    pair.pump(1)
    assert pair.sender.disconnected == ["decode/life-1"]
    for granted in grants:
        pair.decode.handle(Release(granted.grant.grant_id, fenced=True))
    pair.start("again", THIRD_PROMPT)
    pair.pump()
    assert len(pair.tokens("again")) == 6
    pair.assert_at_rest()
