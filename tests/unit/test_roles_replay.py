"""A request that goes on elsewhere behind what it has delivered: the tokens of an undisturbed run, no others."""

from pathlib import Path

import pytest

from baton.errors import ErrorCode
from baton.types import FinishReason, Role, SamplingParams
from engine.messages import AddLocal, AddPrefill, Event, Failed, Finished, Refused, Reserve, Tokens
from engine.roles.local import LocalRole
from tests.fakes.role_pair import BLOCK, PROMPT, Pair, make_context, of, token_ids, turn

pytestmark = pytest.mark.usefixtures("overlap")

# Everything that looks back at the output: the draw's counter, all penalties, min_tokens, max_tokens.
SAMPLING = SamplingParams(
    temperature=0.9,
    seed=77,
    max_tokens=14,
    min_tokens=3,
    presence_penalty=0.6,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    num_logprobs=2,
)
GREEDY = SamplingParams(temperature=0, max_tokens=14)


def undisturbed(folder: Path, sampling: SamplingParams) -> list[Tokens]:
    events: list[Event] = []
    role = LocalRole(make_context(folder, Role.AGGREGATED, events))
    role.handle(AddLocal("r", 1, PROMPT, sampling))
    while not of(events, "r", Finished):
        turn(role)
    return of(events, "r", Tokens)


def replay(pair: Pair, name: str, sampling: SamplingParams, output: tuple[int, ...]) -> list[Tokens]:
    """On both workers, without a wait for the end."""
    pair.decode.handle(Reserve(name, 2, PROMPT, sampling, output))
    pair.decode.context.flush()
    granted = pair.decode_events[-1]
    pair.prefill.handle(AddPrefill(name, 2, PROMPT, sampling, granted.grant, output))  # type: ignore[union-attr]
    pair.pump()
    return of(pair.prefill_events, name, Tokens) + of(pair.decode_events, name, Tokens)


def assert_equal(got: list[Tokens], expected: list[Tokens]) -> None:
    assert [event.output_position for event in got] == [event.output_position for event in expected]
    assert [event.token_ids for event in got] == [event.token_ids for event in expected]
    for ours, theirs in zip(got, expected, strict=True):
        for mine, its in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in its.top]


# 1: behind the first token; 9: prompt and output fill the last block (47 + 9 = 7 blocks of 8); 13: one is left to draw.
@pytest.mark.parametrize("num_delivered", [1, 5, 9, 13])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLING])
def test_replay_on_two_workers(tiny_llama: Path, sampling: SamplingParams, num_delivered: int) -> None:
    whole = undisturbed(tiny_llama, sampling)
    output = tuple(event.token_ids[0] for event in whole[:num_delivered])
    pair = Pair(tiny_llama)
    assert_equal(replay(pair, "r", sampling, output), whole[num_delivered:])
    ended = of(pair.decode_events, "r", Finished) or of(pair.prefill_events, "r", Finished)
    assert ended[0].reason is FinishReason.LENGTH
    pair.decode.handle(AddLocal("r", 3, PROMPT, sampling, output))  # a decode worker can go on alone, too
    before = len(pair.decode_events)
    pair.pump()
    assert_equal(of(pair.decode_events[before:], "r", Tokens), whole[num_delivered:])
    pair.close()


def test_replay_hits_the_prefix_that_the_first_attempt_has_left_on_prefill(tiny_llama: Path) -> None:
    pair = Pair(tiny_llama)
    pair.start("r", PROMPT, GREEDY)
    pair.pump()
    delivered = tuple(pair.tokens("r")[:3])
    pair.start_decode("life-2")  # knows nothing
    pair.decode_events.clear()
    pair.prefill_events.clear()
    replay(pair, "r", GREEDY, delivered)
    done = of(pair.prefill_events, "r", Finished)[0]
    assert done.cached_tokens == len(PROMPT) // BLOCK * BLOCK
    assert [chunk.num_tokens for chunk in done.timeline.prefill_chunks] == [len(PROMPT) % BLOCK + 3]
    assert delivered + tuple(token_ids(pair.prefill_events, "r") + token_ids(pair.decode_events, "r")) == tuple(
        event.token_ids[0] for event in undisturbed(tiny_llama, GREEDY)
    )
    pair.close()


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (tuple(range(1, 15)), "output: got 14 tokens, expected at most 13"),
        ((1, 10**6), "output: got token id 1000000"),
    ],
)
def test_an_output_that_cannot_be_continued_is_refused(tiny_llama: Path, output: tuple[int, ...], words: str) -> None:
    pair = Pair(tiny_llama)
    pair.decode.handle(Reserve("r", 2, PROMPT, GREEDY, output))
    pair.decode.handle(AddLocal("l", 2, PROMPT, GREEDY, output))
    pair.pump(1)
    (refused,), (failed,) = of(pair.decode_events, "r", Refused), of(pair.decode_events, "l", Failed)
    assert refused.code is failed.code is ErrorCode.INVALID_ARGUMENT
    assert refused.message.startswith(words)
    assert failed.message.startswith(words)
    pair.assert_at_rest()
    pair.close()
