"""A running request that goes on on another decode worker: the tokens of an undisturbed run, nothing left behind."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.types import FinishReason, Role, SamplingParams
from engine.grammar.compiler import CompilerLimits, GrammarCompiler
from engine.messages import (
    Abort,
    Aborted,
    AddLocal,
    Admitted,
    Event,
    Failed,
    Finished,
    Granted,
    Migrate,
    MigrateEnded,
    Moved,
    Refused,
    Release,
    Reserve,
    Tokens,
)
from engine.roles.decode import DecodeRole
from engine.roles.grammar_gate import GrammarGate
from engine.roles.local import LocalRole
from kv_transfer.inproc import Fault, InprocNetwork, InprocReceiver
from tests.fakes.grammars import FakeBackend, spelled
from tests.fakes.role_pair import (
    DECODE_LEASE,
    PREFILL_LEASE,
    PROMPT,
    Clock,
    RecordingSender,
    make_context,
    of,
    region,
    turn,
)

pytestmark = pytest.mark.usefixtures("overlap")

MAX_TOKENS = 60  # 47 + 60 tokens: up to 14 blocks of 8
EXTRA = 16
SAMPLING = SamplingParams(
    temperature=0.9,
    seed=77,
    max_tokens=MAX_TOKENS,
    presence_penalty=0.6,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    num_logprobs=2,
)
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)


class Two:
    """Two decode workers over one network; a request starts on the first one."""

    def __init__(self, folder: Path) -> None:
        self.network = InprocNetwork()
        self.source_events: list[Event] = []
        self.target_events: list[Event] = []
        self.source = self._role(folder, "source", self.source_events)
        self.target = self._role(folder, "target", self.target_events)
        self.roles = [self.source, self.target]

    def _role(self, folder: Path, name: str, events: list[Event]) -> DecodeRole:
        context = make_context(folder, Role.DECODE, events, lease=PREFILL_LEASE if name == "source" else DECODE_LEASE)
        receiver = InprocReceiver(region(context), name, self.network)
        return DecodeRole(context, receiver, lambda: RecordingSender(context, self.network))

    def run_source(self, num_tokens: int) -> None:
        """Until it has drawn so many in all."""
        while len(of(self.source_events, "r", Tokens)) < num_tokens:
            turn(self.source)

    def reserve(self, sampling: SamplingParams, num_known: int, extra: int = EXTRA) -> Granted:
        """As the gateway does, which knows of so many output tokens."""
        output = tuple(event.token_ids[0] for event in of(self.source_events, "r", Tokens)[:num_known])
        self.target.handle(Reserve("r", 2, PROMPT, sampling, output, num_extra_tokens=extra))
        self.target.context.flush()
        granted = self.target_events[-1]
        assert isinstance(granted, Granted), granted
        return granted

    def migrate(self, granted: Granted, num_known: int) -> None:
        self.source.handle(Migrate(7, "r", 1, granted.grant, len(PROMPT) + num_known))

    def pump(self, rounds: int = 80) -> None:
        for _ in range(rounds):
            for role in self.roles:
                turn(role)

    def ended(self) -> MigrateEnded:
        self.source.context.flush()
        (ended,) = of(self.source_events, "r", MigrateEnded)
        assert ended.call_id == 7
        return ended

    def tokens(self) -> list[Tokens]:
        return of(self.source_events, "r", Tokens) + of(self.target_events, "r", Tokens)

    def close(self) -> None:
        for role in self.roles:
            assert role.check_integrity() == []
            stats = role.stats()
            assert (stats.blocks.active, stats.blocks.quarantined, stats.grants, stats.running, stats.waiting) == (
                0,
            ) * 5
            role.close()


@pytest.fixture
def two(tiny_llama: Path) -> Two:
    return Two(tiny_llama)


def undisturbed(folder: Path, sampling: SamplingParams) -> list[Tokens]:
    events: list[Event] = []
    role = LocalRole(make_context(folder, Role.AGGREGATED, events))
    role.handle(AddLocal("r", 1, PROMPT, sampling))
    while not of(events, "r", Finished):
        turn(role)
    return of(events, "r", Tokens)


def assert_equal(got: list[Tokens], expected: list[Tokens]) -> None:
    assert [event.output_position for event in got] == list(range(len(expected)))
    assert [event.token_ids for event in got] == [event.token_ids for event in expected]
    for ours, theirs in zip(got, expected, strict=True):
        for mine, its in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-4)


# How many tokens the source has drawn, and how many of them the gateway knew of when it reserved. 18: 47 + 17 tokens of
# KV fill 8 blocks, so that the last write has no partial block; all known: the source must draw one more.
@pytest.mark.parametrize(("drawn", "known"), [(1, 0), (5, 5), (5, 2), (18, 17), (19, 18), (30, 26)])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLING])
def test_a_request_goes_on_elsewhere(
    two: Two, tiny_llama: Path, sampling: SamplingParams, drawn: int, known: int
) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, sampling))
    two.run_source(drawn)
    two.migrate(two.reserve(sampling, known), known)
    two.pump()
    assert two.ended().moved
    (moved,) = of(two.source_events, "r", Moved)
    assert moved.output_position == len(of(two.source_events, "r", Tokens)) < MAX_TOKENS
    assert moved.transfer.blocks > 0
    assert len(of(two.target_events, "r", Admitted)) == 1
    (finished,) = of(two.target_events, "r", Finished)
    assert finished.reason is FinishReason.LENGTH
    assert not of(two.source_events, "r", Finished)
    assert_equal(two.tokens(), undisturbed(tiny_llama, sampling))
    two.close()


def test_it_draws_on_while_its_full_blocks_travel(two: Two, tiny_llama: Path) -> None:
    """The first write takes its time; only one block and the tail are left when the request stops."""
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: None if write.notification else Fault.HOLD
    two.migrate(two.reserve(GREEDY, 3), 3)
    for _ in range(9):
        turn(two.source)
    assert len(of(two.source_events, "r", Tokens)) == 3 + 9
    two.network.choose_fault = None
    two.network.release_held()
    two.pump()
    assert two.ended().moved
    (moved,) = of(two.source_events, "r", Moved)
    assert [write.blocks for write in moved.timeline.writes] == [6, 2]
    assert_equal(two.tokens(), undisturbed(tiny_llama, GREEDY))
    two.close()


def test_it_stops_where_the_granted_room_ends(two: Two, tiny_llama: Path) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: None if write.notification else Fault.HOLD
    granted = two.reserve(GREEDY, 3)
    two.migrate(granted, 3)
    for _ in range(EXTRA + 20):
        turn(two.source)
    room = (granted.grant.first_block + len(granted.grant.block_ids)) * 8
    assert len(PROMPT) + len(of(two.source_events, "r", Tokens)) == room + 1  # the newest one's KV is not computed
    assert two.source.stats().running == 0
    two.network.choose_fault = None
    two.network.release_held()
    two.pump()
    assert two.ended().moved
    assert_equal(two.tokens(), undisturbed(tiny_llama, GREEDY))
    two.close()


def test_a_failed_write_before_the_stop_costs_nothing(two: Two, tiny_llama: Path) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: Fault.FAIL
    granted = two.reserve(GREEDY, 3)
    two.migrate(granted, 3)
    two.pump(10)
    ended = two.ended()
    assert (ended.moved, ended.fenced) == (False, False)
    two.target.handle(Release(granted.grant.grant_id, ended.fenced))
    two.pump()
    assert of(two.source_events, "r", Finished)
    assert_equal(two.tokens(), undisturbed(tiny_llama, GREEDY))
    assert two.target.stats().blocks.quarantined == len(granted.grant.block_ids)
    two.target.context.pool.lift(granted.grant.grant_id)
    two.close()


def test_a_failed_last_write_ends_the_request(two: Two) -> None:
    """Whether it has arrived is not known, so it must not go on here as well."""
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: Fault.FAIL if write.notification else None
    granted = two.reserve(GREEDY, 3)
    two.migrate(granted, 3)
    two.pump(10)
    ended = two.ended()
    assert (ended.moved, ended.fenced) == (False, False)
    assert len(of(two.source_events, "r", Failed)) == 1
    count = len(two.tokens())
    two.pump(10)
    assert len(two.tokens()) == count
    two.target.handle(Release(granted.grant.grant_id, fenced=True))
    two.pump(1)
    two.close()


def test_corrupted_kv_is_not_gone_on_with(two: Two) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: Fault.CORRUPT
    granted = two.reserve(GREEDY, 3)
    two.migrate(granted, 3)
    two.pump(10)
    assert two.ended().moved
    (failed,) = of(two.target_events, "r", Failed)
    assert "digest mismatch" in failed.message
    assert not of(two.target_events, "r", Tokens)
    two.target.handle(Release(granted.grant.grant_id, fenced=True))
    two.close()


def test_a_lease_that_is_over_stops_nothing(two: Two, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    granted = two.reserve(GREEDY, 3)
    clock.skip(DECODE_LEASE.lease_s + 1)
    two.migrate(granted, 3)
    ended = two.ended()
    assert (ended.moved, ended.fenced) == (False, True)
    assert "lease ran out" in ended.problem
    two.target.poll()
    clock.skip(DECODE_LEASE.longest_write_s + 1)
    two.pump()
    assert_equal(two.tokens(), undisturbed(tiny_llama, GREEDY))
    two.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_an_abort_waits_for_the_write(two: Two, stopped: bool) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    two.run_source(3)
    two.network.choose_fault = lambda write: Fault.HOLD if stopped == bool(write.notification) else None
    granted = two.reserve(GREEDY, 2)
    two.migrate(granted, 2)
    for _ in range(3):
        turn(two.source)
    assert two.source.stats().running == int(not stopped)
    two.source.handle(Abort("r", 1))
    turn(two.source)
    assert bool(of(two.source_events, "r", Aborted)) == (not stopped)
    assert not of(two.source_events, "r", MigrateEnded)
    assert two.source.stats().blocks.active > 0  # they are being read
    assert two.source.check_integrity() == []
    two.network.choose_fault = None
    two.network.release_held()
    two.pump(2)
    assert len(of(two.source_events, "r", Aborted)) == 1
    assert not two.ended().moved
    two.target.handle(Release(granted.grant.grant_id, fenced=True))
    two.pump(1)
    two.close()


def test_a_request_that_ends_meanwhile_has_ended_here(two: Two, tiny_llama: Path) -> None:
    short = SamplingParams(temperature=0, max_tokens=10)
    two.source.handle(AddLocal("r", 1, PROMPT, short))
    two.run_source(3)
    two.network.choose_fault = lambda write: Fault.HOLD
    granted = two.reserve(short, 3)
    two.migrate(granted, 3)
    for _ in range(12):
        turn(two.source)
    assert of(two.source_events, "r", Finished)
    two.network.choose_fault = None
    two.network.release_held()
    two.pump(2)
    ended = two.ended()
    assert (ended.moved, ended.fenced) == (False, True)
    two.target.handle(Release(granted.grant.grant_id, fenced=True))
    assert_equal(two.tokens(), undisturbed(tiny_llama, short))
    two.close()


def test_what_cannot_be_moved_is_told_and_goes_on(two: Two, tiny_llama: Path) -> None:
    two.source.handle(AddLocal("r", 1, PROMPT, GREEDY))
    granted = two.reserve(GREEDY, 0)
    two.migrate(granted, 0)
    assert "does not draw tokens here now" in two.ended().problem
    two.source_events.clear()
    two.run_source(3)
    two.source.handle(Migrate(7, "r", 1, granted.grant, 10))
    assert "num_reserved_tokens: got 10, expected 47 to 50" in two.ended().problem
    two.source_events[:] = [event for event in two.source_events if not isinstance(event, MigrateEnded)]
    two.pump(1)
    two.target.handle(Release(granted.grant.grant_id, fenced=True))
    two.pump()
    assert_equal(two.tokens(), undisturbed(tiny_llama, GREEDY))
    two.close()


def test_a_grant_has_room_within_the_context_only(two: Two) -> None:
    prompt = tuple(range(100))
    for extra, blocks in ((0, 13), (8, 14), (1000, 16)):
        two.target.handle(Reserve("x", 1 + extra, prompt, GREEDY, num_extra_tokens=extra))
        two.target.context.flush()
        granted = two.target_events[-1]
        assert isinstance(granted, Granted), isinstance(granted, Refused)
        assert len(granted.grant.block_ids) == blocks
        two.target.handle(Release(granted.grant.grant_id, fenced=True))
    two.close()


def test_a_grammar_follows(two: Two) -> None:
    """The target compiles it, and replays what was drawn before the reservation and after it."""
    answer = tuple(range(20, 60))
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=5, structured=spelled(*answer))
    gates = []
    for role in two.roles:
        role.context.grammars = GrammarCompiler(FakeBackend, CompilerLimits())
        gates.append(GrammarGate(role.context, role))
    source, target = gates

    def turn_until(done: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline_s
            for gate in gates:
                turn(gate)

    source.handle(AddLocal("r", 1, PROMPT, sampling))
    turn_until(lambda: len(of(two.source_events, "r", Tokens)) == 9)
    target.handle(Reserve("r", 2, PROMPT, sampling, answer[:4], num_extra_tokens=EXTRA))
    deadline_s = time.monotonic() + 60
    while not of(two.target_events, "r", Granted):
        assert time.monotonic() < deadline_s
        turn(target)
    source.handle(Migrate(7, "r", 1, of(two.target_events, "r", Granted)[0].grant, len(PROMPT) + 4))
    turn_until(lambda: of(two.target_events, "r", Finished))
    assert of(two.target_events, "r", Finished)[0].reason is FinishReason.STOP
    assert tuple(event.token_ids[0] for event in two.tokens()) == answer
    assert two.ended().moved
    two.close()
