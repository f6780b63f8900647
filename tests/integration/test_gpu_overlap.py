"""Overlapped steps on a GPU: the tokens of steps one after the other, nothing waited for, nothing allocated."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.types import Role, SamplingParams
from engine.config import SchedulerConfig
from engine.messages import AddLocal, Event, Finished, Tokens
from engine.roles.local import LocalRole
from tests.fakes.role_pair import PROMPT, make_context, of, token_ids, turn

GREEDY = SamplingParams(temperature=0, max_tokens=70)
PLAIN = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3, max_tokens=70)
SAMPLING = [
    GREEDY,
    PLAIN,
    SamplingParams(temperature=0, max_tokens=40, num_logprobs=3, num_prompt_logprobs=2),
    SamplingParams(temperature=1.0, seed=9, max_tokens=50, min_tokens=30, stop_token_ids=tuple(range(0, 320, 5))),
    SamplingParams(temperature=0.7, seed=4, max_tokens=30, frequency_penalty=0.5, bad_words=((9,),)),
]


def make_role(folder: Path, events: list[Event], overlap: bool) -> LocalRole:
    steps = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=8, overlap_steps=overlap)
    return LocalRole(make_context(folder, Role.AGGREGATED, events, blocks=120, steps=steps, device="cuda"))


def answers(folder: Path, overlap: bool) -> list[tuple[list[int], object, list[object]]]:
    """Tokens, reason and log-probabilities of requests of which one joins every few steps."""
    events: list[Event] = []
    role = make_role(folder, events, overlap)
    for index, sampling in enumerate(SAMPLING):
        role.handle(AddLocal(str(index), 1, PROMPT[index:], sampling))
        for _ in range(4):
            turn(role)
    while turn(role):
        pass
    assert role.check_integrity() == []
    names = [str(index) for index in range(len(SAMPLING))]
    return [
        (
            token_ids(events, name),
            of(events, name, Finished)[0].reason,
            [[one.token_id for one in event.logprobs] for event in of(events, name, Tokens)],
        )
        for name in names
    ]


@pytest.mark.gpu
def test_overlapped_steps_draw_the_same(tiny_llama: Path) -> None:
    assert answers(tiny_llama, overlap=True) == answers(tiny_llama, overlap=False)


@pytest.fixture
def syncs_are_errors() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_steady_steps_wait_for_nothing_and_take_no_memory(
    tiny_llama: Path, sampling: SamplingParams, syncs_are_errors: None
) -> None:
    """But for one event a step. Blocks that the allocator has at hand are not memory taken from the device."""
    events: list[Event] = []
    role = make_role(tiny_llama, events, overlap=True)
    for index in range(5):
        role.handle(AddLocal(str(index), 1, PROMPT[index:], sampling))
    while len(events) < 5 * 10:
        turn(role)
    before = torch.cuda.memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(50):
        turn(role)
    torch.cuda.set_sync_debug_mode("default")
    after = torch.cuda.memory_stats()
    assert len(events) >= 5 * 60
    assert after["segment.all.allocated"] == before["segment.all.allocated"]
    if sampling is GREEDY:
        assert after["allocation.all.allocated"] == before["allocation.all.allocated"]
