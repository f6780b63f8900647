"""A preempted request ends with the tokens of an undisturbed one, whichever way its KV comes back."""

from pathlib import Path

import pytest

from baton.types import Role, SamplingParams
from engine.config import SchedulerConfig
from engine.messages import AddLocal, Event, Finished
from engine.roles.local import LocalRole
from tests.fakes.role_pair import PROMPT, local_tokens, make_context, of, token_ids, turn

pytestmark = pytest.mark.usefixtures("overlap")

PROMPTS = {"a": PROMPT, "b": tuple(range(100, 147)), "c": tuple(range(200, 231)), "d": (*PROMPT[:24], *range(60, 80))}


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0, max_tokens=40), SamplingParams(max_tokens=40, seed=5)]
)
@pytest.mark.parametrize("swap", [True, False], ids=["swap", "recompute"])
def test_tokens_are_those_of_an_undisturbed_run(
    tiny_llama: Path, swap: bool, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    steps = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8, growth_reserve_blocks=0)
    context = make_context(tiny_llama, Role.AGGREGATED, events, blocks=20, steps=steps)
    monkeypatch.setattr(context.costs, "prefers_swap", lambda num_tokens, num_blocks: swap and num_tokens > 0)
    role = LocalRole(context)
    for name, prompt in PROMPTS.items():
        role.handle(AddLocal(name, 1, prompt, sampling))
    for _ in range(400):
        turn(role)
        assert role.check_integrity() == []
    stats = role.stats()
    assert stats.preemptions > 1
    assert stats.swap_preemptions == (stats.preemptions if swap else 0)
    assert (stats.blocks.active, stats.swap_blocks_used, stats.running, stats.waiting) == (0, 0, 0, 0)
    for name, prompt in PROMPTS.items():
        assert len(of(events, name, Finished)) == 1
        assert token_ids(events, name) == local_tokens(tiny_llama, prompt, sampling)


def test_without_swap_space_everything_is_recomputed(tiny_llama: Path) -> None:
    events: list[Event] = []
    context = make_context(tiny_llama, Role.AGGREGATED, events, blocks=16, swap_space_bytes=0)
    role = LocalRole(context)
    for name in ("a", "b"):
        role.handle(AddLocal(name, 1, PROMPTS[name], SamplingParams(temperature=0, max_tokens=40)))
    for _ in range(150):
        turn(role)
    assert role.stats().preemptions > 0
    assert role.stats().swap_preemptions == 0
    assert of(events, "a", Finished)
    assert of(events, "b", Finished)


def test_priorities_decide_who_waits(tiny_llama: Path) -> None:
    events: list[Event] = []
    steps = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=1, policy="priority")
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events, steps=steps))
    for name, priority in (("late", 5), ("soon", 0), ("first", -5)):
        role.handle(AddLocal(name, 1, PROMPT, SamplingParams(temperature=0, max_tokens=2), priority=priority))
    for _ in range(30):
        turn(role)
    assert [event.request_id for event in events if isinstance(event, Finished)] == ["first", "soon", "late"]
