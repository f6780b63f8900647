"""Decode graphs on a GPU: the tokens of the CPU, at every batch size, with prompts coming in between."""

from pathlib import Path

import pytest

from baton.types import Role, SamplingParams
from engine.messages import AddLocal, Event, Finished
from engine.roles.local import LocalRole
from tests.fakes.role_pair import PROMPT, local_tokens, make_context, of, token_ids, turn

PROMPTS = [(*PROMPT[: 9 + 3 * index], *range(20 + index, 40)) for index in range(7)]
SAMPLING = [SamplingParams(temperature=0, max_tokens=12 + index) for index in range(5)] + [
    SamplingParams(temperature=0.8, seed=5, max_tokens=20),
    SamplingParams(temperature=0, max_tokens=20, frequency_penalty=0.5, num_logprobs=2),
]


@pytest.mark.gpu
def test_the_same_tokens_as_on_the_cpu(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events, blocks=80, device="cuda"))
    assert role.context.runner._graphs is not None
    for index, prompt in enumerate(PROMPTS):  # one joins every few steps, so batches of all sizes are decoded
        role.handle(AddLocal(str(index), 1, prompt, SAMPLING[index]))
        for _ in range(4):
            turn(role)
    for _ in range(60):
        turn(role)
    for index, prompt in enumerate(PROMPTS):
        assert of(events, str(index), Finished)
        assert token_ids(events, str(index)) == local_tokens(tiny_llama, prompt, SAMPLING[index])
