"""10,000 schedules, and that the simulation notices what would go wrong without the product's defences."""

from typing import Any

import msgspec
import pytest

from engine import handover
from engine.block_pool import BlockPool
from engine.grants import GrantTable, OpenGrant
from engine.roles import decode
from kv_transfer.inproc import Fault
from tests.simulation.processes import explore
from tests.simulation.schedule import Ask, Event, Happening, PointFault, Schedule, draw
from tests.simulation.shrink import shrink
from tests.simulation.world import World, simulate

SCHEDULES = 10_000
PROMPT = tuple(range(1, 41))  # 5 blocks
ONE = Schedule(1, 1, 1, 14, 14, (Ask(0.0, PROMPT, 6, 0),))


def with_faults(*faults: PointFault, asks: tuple[Ask, ...] = ONE.asks, **more: Any) -> Schedule:
    return msgspec.structs.replace(ONE, faults=faults, asks=asks, **more)


@pytest.mark.timeout(900)
def test_no_schedule_gives_a_wrong_token_a_leak_or_a_lost_request() -> None:
    counts, output = explore(SCHEDULES)
    print(output, counts, sep="\n")
    assert counts == {"fault_schedules": SCHEDULES, "wrong": 0, "leaked": 0, "lost": 0}, output


def test_a_schedule_runs_the_same_way_each_time() -> None:
    schedule = draw(3)
    assert simulate(schedule) == simulate(schedule)


def test_a_schedule_without_faults_answers_everybody() -> None:
    asks = tuple(Ask(number / 100, PROMPT[number:], 12, number) for number in range(4))
    outcome = simulate(msgspec.structs.replace(ONE, asks=asks, prefill=2, decode=2))
    assert not outcome.failed
    assert outcome.ends == ["finished: length"] * 4


@pytest.mark.parametrize(
    "action", ["fail", "tear", "late", "hold", "corrupt", "lose_notification", "repeat_notification"]
)
def test_an_answer_survives_any_fault_of_one_write(action: Fault) -> None:
    outcome = simulate(with_faults(PointFault("kv.write", 2, action, 0.5), prefill=2, decode=2))
    assert not outcome.failed
    assert outcome.ends == ["finished: length"]


def test_a_stopped_writer_is_noticed_without_tethers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on after the quarantine, when its blocks are another's."""
    others = tuple(Ask(5.0 + number / 10, tuple(range(20 + number, 60 + number)), 30, 0) for number in range(3))
    stopped = with_faults(PointFault("kv.post", 1, "stop", 5.5), asks=(*ONE.asks, *others), decode_blocks=14)
    late = msgspec.structs.replace(stopped, prefill=2)
    assert not simulate(late).failed
    expire = BlockPool.expire_quarantine
    monkeypatch.setattr(BlockPool, "expire_quarantine", lambda pool, now, _: expire(pool, now, lambda _: False))
    assert simulate(late).wrong


@pytest.mark.parametrize("seed", range(50))
def test_an_answer_survives_a_flipped_bit(seed: int) -> None:
    """Any bit of a prompt of whole blocks, in any of its writes: detected, and right after a retry."""
    world = World(with_faults(PointFault("kv.write", 1 + seed % 2, "corrupt"), prefill=2, decode=2, seed=seed))
    outcome = world.run()
    assert not outcome.failed
    assert outcome.ends == ["finished: length"]
    mismatches = [worker.engine_role.stats().digest_mismatches for worker in world.workers.values()]
    assert sum(mismatches) == 1


@pytest.mark.parametrize("action", ["drop", "duplicate", "corrupt", "later"])
@pytest.mark.parametrize("seed", range(10))
def test_an_answer_survives_any_fault_of_kv_ready(action: str, seed: int) -> None:
    outcome = simulate(with_faults(PointFault("kv_ready.received", 1, action, 0.5), prefill=2, decode=2, seed=seed))
    assert not outcome.failed
    assert outcome.ends == ["finished: length"]


def test_flipped_bits_are_noticed_without_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    flipped = with_faults(PointFault("kv.write", 1, "corrupt"))
    assert not simulate(flipped).failed
    for module in (handover, decode):
        monkeypatch.setattr(module, "kv_digest", lambda *_: 0)
    assert simulate(flipped).wrong


def test_late_writes_are_noticed_without_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(Ask(0.01 + number / 50, tuple(range(20 + number, 60 + number)), 30, 0) for number in range(3))
    late = with_faults(PointFault("kv.write", 1, "late", 0.4), asks=(*ONE.asks, *others), prefill=2)
    timings = [msgspec.structs.replace(late, seed=seed) for seed in range(8)]
    assert not any(simulate(schedule).failed for schedule in timings)
    close = GrantTable.close

    def close_at_once(table: GrantTable, entry: OpenGrant, fenced: bool) -> None:
        close(table, entry, True)

    monkeypatch.setattr(GrantTable, "close", close_at_once)
    assert any(simulate(schedule).wrong for schedule in timings)


def test_a_leak_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockPool, "expire_quarantine", lambda *_: None)
    assert simulate(with_faults(PointFault("kv.write", 1, "fail"))).leaked


def test_a_failing_schedule_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (handover, decode):
        monkeypatch.setattr(module, "kv_digest", lambda *_: 0)
    noise = PointFault("Decode.tokens", 2, "delay", 0.05), PointFault("kv.write", 5, "lose_notification")
    events = (Event(0.5, Happening.REDIS_DOWN, "", 1.0),)
    asks = (*ONE.asks, Ask(0.1, PROMPT[:9], 12, 0))
    long = with_faults(PointFault("kv.write", 1, "corrupt"), *noise, asks=asks, events=events)
    short = shrink(long, lambda schedule: bool(simulate(schedule).wrong))
    assert short.faults == (PointFault("kv.write", 1, "corrupt"),)
    assert (short.events, len(short.asks)) == ((), 1)
    assert len(short.asks[0].prompt) < len(PROMPT)
