"""Graphs on a GPU, of decodes and of prompts: the tokens of the CPU, at every batch size."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from baton.types import Role, SamplingParams
from engine.config import SchedulerConfig
from engine.decode_graphs import Decoded
from engine.messages import AddLocal, Event, Finished
from engine.request import Request
from engine.roles.local import LocalRole
from engine.scheduler.base import SequencePlan
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


@pytest.mark.gpu
def test_prompts_by_graphs_give_the_same_tokens_as_on_the_cpu(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole prompts, chunks of one that is longer than a step, several at once, and a cached prefix before one."""
    steps = SchedulerConfig(max_num_batched_tokens=80, max_num_seqs=8)
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events, blocks=120, steps=steps, device="cuda"))
    graphs = role.context.runner._prompt_graphs
    assert graphs is not None
    served: list[list[tuple[int, int]]] = []
    run = graphs.run

    def counted(sequences: Sequence[SequencePlan]) -> tuple[list[Request], Decoded]:
        served.append([(sequence.request.num_computed_tokens, sequence.num_tokens) for sequence in sequences])
        return run(sequences)

    monkeypatch.setattr(graphs, "run", counted)
    long = tuple(range(3, 120))
    rounds = [[PROMPTS[0]], [PROMPTS[1], PROMPTS[2]], [long], [long[:90]]]
    for index, prompts in enumerate(rounds):
        for at, prompt in enumerate(prompts):
            role.handle(AddLocal(f"{index}-{at}", 1, prompt, SAMPLING[index]))
        while turn(role):
            pass
        for at, prompt in enumerate(prompts):
            assert token_ids(events, f"{index}-{at}") == local_tokens(tiny_llama, prompt, SAMPLING[index])
    assert [(0, len(PROMPTS[0]))] in served
    assert any(len(step) == 2 for step in served)
    assert any(start > 0 for step in served for start, _ in step)
