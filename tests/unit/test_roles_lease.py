"""A lease that is renewed in time: waiting never costs a request its grant, and nothing is written past a promise."""

import time
from pathlib import Path

import pytest

from engine.messages import ExtendLease, Failed, Finished, LeaseExtended, LeaseRenewed, RenewLease, Reserve
from kv_transfer.inproc import Fault
from tests.fakes.role_pair import DECODE_LEASE, GREEDY, PROMPT, Clock, Pair, inject, local_tokens, of

LEASE_S = 30.0  # of a Pair


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pair(tiny_llama: Path, clock: Clock) -> Pair:
    return Pair(tiny_llama, lease_s=LEASE_S)


def renew(pair: Pair, grant_id: str) -> int | None:
    pair.decode.handle(RenewLease(1, grant_id))
    pair.decode.context.flush()
    (reply,) = [event for event in pair.decode_events if isinstance(event, LeaseRenewed)]
    pair.decode_events.remove(reply)
    return reply.lease_deadline_unix_ns


def extend(pair: Pair, name: str, deadline_unix_ns: int) -> bool:
    pair.prefill.handle(ExtendLease(2, name, 1, deadline_unix_ns))
    pair.prefill.context.flush()
    (reply,) = [event for event in pair.prefill_events if isinstance(event, LeaseExtended)]
    pair.prefill_events.remove(reply)
    return reply.known


def test_a_renewed_lease_outlasts_any_wait(pair: Pair, clock: Clock, tiny_llama: Path) -> None:
    granted = pair.start("a")
    for _ in range(5):
        clock.skip(LEASE_S * 0.7)
        pair.decode.poll()
        deadline = renew(pair, granted.grant.grant_id)
        assert deadline is not None
        assert abs(deadline - time.time_ns() - LEASE_S * 1e9) < 1e9
        assert extend(pair, "a", deadline)
        pair.prefill.poll()
    pair.pump()
    assert pair.tokens("a") == local_tokens(tiny_llama, PROMPT, GREEDY)
    assert not extend(pair, "a", time.time_ns())  # over
    assert renew(pair, granted.grant.grant_id) is None
    pair.assert_at_rest()


def test_prefill_writes_until_the_end_that_it_knows_only(pair: Pair, clock: Clock) -> None:
    """Decode has promised more, but prefill has not heard of it."""
    granted = pair.start("a")
    clock.skip(LEASE_S * 0.9)
    assert renew(pair, granted.grant.grant_id) is not None
    clock.skip(LEASE_S * 0.2)
    pair.pump()
    assert pair.sender.posted == []
    assert "lease ran out" in of(pair.prefill_events, "a", Failed)[0].message
    assert of(pair.decode_events, "a", Failed) == []  # which still waits


def test_quarantine_waits_for_the_renewed_end(pair: Pair, clock: Clock) -> None:
    granted = pair.start("a")
    clock.skip(LEASE_S * 0.9)
    deadline = renew(pair, granted.grant.grant_id)
    assert deadline is not None
    assert extend(pair, "a", deadline)
    inject(pair, 0, Fault.FAIL)
    clock.skip(LEASE_S * 0.5)  # beyond the first end
    pair.pump()
    assert of(pair.prefill_events, "a", Failed)
    clock.skip(LEASE_S * 0.6)  # beyond the second one, but not by the longest write and the margin
    pair.decode.poll()
    assert pair.decode.stats().blocks.quarantined == len(granted.grant.block_ids)
    clock.skip(DECODE_LEASE.longest_write_s + DECODE_LEASE.clock_margin_s)
    pair.decode.poll()
    assert pair.decode.stats().blocks.quarantined == 0
    pair.prefill.poll()


def test_an_earlier_end_changes_nothing(pair: Pair, clock: Clock) -> None:
    pair.start("a")
    assert extend(pair, "a", 1)
    pair.pump()
    assert of(pair.prefill_events, "a", Finished)


def test_unknown_names_are_answered(pair: Pair) -> None:
    assert renew(pair, "nothing") is None
    assert not extend(pair, "nobody", time.time_ns())
    pair.decode.handle(Reserve("a", 1, PROMPT, GREEDY))
    assert not extend(pair, "a", time.time_ns())  # reserved on decode, but not on its way to prefill yet
