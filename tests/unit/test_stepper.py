"""Overlapped steps: which step is launched before which is read, what is wasted, and whose blocks wait for it."""

from pathlib import Path

import msgspec
import pytest

from baton.types import FinishReason, Role, SamplingParams
from engine.messages import Abort, Aborted, AddLocal, Event, Finished, Tokens
from engine.roles.local import LocalRole
from engine.scheduler.base import StepPlan
from engine.step_in_flight import StepInFlight, StepResult
from tests.fakes.role_pair import BLOCK, GREEDY, PROMPT, STEPS, make_context, of, token_ids, turn

SHORT = PROMPT[:10]


class Device:
    """Notes launches and reads as a core makes them; in front of its runner."""

    def __init__(self, role: LocalRole, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.ran_ahead: set[str] = set()  # requests that were launched with a token that was not known
        self._launch = role.context.runner.launch
        monkeypatch.setattr(role.context.runner, "launch", self.launch)
        monkeypatch.setattr(StepInFlight, "result", self.read(StepInFlight.result))

    def launch(self, plan: StepPlan) -> StepInFlight:
        self.log.append("launch")
        self.ran_ahead |= {request.key[0] for request, _, _ in plan.sequences if request.num_unknown_tokens}
        return self._launch(plan)

    def read(self, result):  # type: ignore[no-untyped-def]
        def noted(step: StepInFlight) -> StepResult:
            self.log.append("read")
            return result(step)

        return noted


def make_role(folder: Path, events: list[Event], overlap: bool = True) -> LocalRole:
    steps = msgspec.structs.replace(STEPS, overlap_steps=overlap)
    return LocalRole(make_context(folder, Role.AGGREGATED, events, steps=steps))


def run(role: LocalRole) -> None:
    while turn(role):
        assert role.check_integrity() == []
    assert role.stats().blocks.active == role.stats().running == 0


def test_each_step_is_launched_before_the_last_one_is_read(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    role = make_role(tiny_llama, events)
    device = Device(role, monkeypatch)
    role.handle(AddLocal("a", 1, SHORT, GREEDY))
    turn(role)
    assert device.log == ["launch", "launch", "read"]
    assert len(of(events, "a", Tokens)) == 1
    run(role)
    # A length is known ahead, so no step is wasted, and the last one is read as soon as it is launched.
    assert device.log == ["launch", *["launch", "read"] * 5, "read"]
    assert [event.output_position for event in of(events, "a", Tokens)] == [*range(6)]


def test_tokens_that_decide_the_next_step_are_read_first(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    role = make_role(tiny_llama, events)
    device = Device(role, monkeypatch)
    dependent = {"words": {"bad_words": ((5, 6),)}, "penalty": {"presence_penalty": 0.1}}
    others = {"plain": {"max_tokens": 12}, "banned": {"min_tokens": 9, "max_tokens": 10}}
    for name, changes in {**dependent, **others}.items():
        role.handle(AddLocal(name, 1, SHORT, msgspec.structs.replace(GREEDY, **changes)))
    run(role)
    assert device.ran_ahead == {*others}
    assert {event.request_id for event in events if isinstance(event, Finished)} == {*dependent, *others}


def test_a_stop_token_is_found_one_step_late(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step behind it is wasted, and keeps the blocks until it has ended."""
    events: list[Event] = []
    role = make_role(tiny_llama, events)
    role.handle(AddLocal("plain", 1, SHORT, GREEDY))
    run(role)
    tokens = token_ids(events, "plain")
    stop = next(token for token in tokens[1:] if token != tokens[0])
    device = Device(role, monkeypatch)
    role.handle(AddLocal("a", 1, SHORT, msgspec.structs.replace(GREEDY, max_tokens=50, stop_token_ids=(stop,))))
    while not of(events, "a", Finished):
        turn(role)
        assert role.check_integrity() == []
    expected = tokens[: tokens.index(stop) + 1]
    assert (token_ids(events, "a"), of(events, "a", Finished)[0].reason) == (expected, FinishReason.STOP)
    assert role.stats().running == 0
    assert role.stats().blocks.active == -(-(len(SHORT) + len(expected)) // BLOCK)
    run(role)
    assert device.log.count("launch") == device.log.count("read") == len(expected) + 1
    assert token_ids(events, "a") == expected


def test_an_aborted_request_leaves_its_blocks_to_the_step_in_flight(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = make_role(tiny_llama, events)
    role.handle(AddLocal("a", 1, SHORT, GREEDY))
    turn(role)
    role.handle(Abort("a", 1))
    assert role.check_integrity() == []
    assert role.stats().blocks.active == 2
    assert turn(role)
    assert not turn(role)
    assert role.stats().blocks.active == 0
    assert (len(of(events, "a", Tokens)), len(of(events, "a", Aborted)), of(events, "a", Finished)) == (1, 1, [])


@pytest.mark.parametrize("num_steps", [1, 3, 8])
def test_the_cache_holds_what_steps_one_after_the_other_leave(tiny_llama: Path, num_steps: int) -> None:
    """Computed and known tokens, none of a wasted step."""
    counts = []
    for overlap in (False, True):
        events: list[Event] = []
        role = make_role(tiny_llama, events, overlap)
        role.handle(AddLocal("a", 1, PROMPT[:15], SamplingParams(temperature=0, max_tokens=20)))
        while len(of(events, "a", Tokens)) < num_steps:
            turn(role)
        role.handle(Abort("a", 1))
        run(role)
        counts.append((token_ids(events, "a"), role.stats().blocks.cached))
    assert counts[0] == counts[1]
