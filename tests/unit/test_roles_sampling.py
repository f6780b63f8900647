"""Sampling fields inside the engine: bad words, allowed tokens, prompt log-probabilities, draws that nothing moves."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM, MinNewTokensLengthLogitsProcessor, NoBadWordsLogitsProcessor

from baton.types import Role, SamplingParams, TokenLogprobs
from engine.bans import banned_tokens
from engine.messages import AddLocal, Event, Finished, PromptLogprobs, Tokens
from engine.request import Request
from engine.roles.local import LocalRole
from tests.fakes.role_pair import GREEDY, PROMPT, Pair, local_tokens, make_context, of, token_ids, turn

pytestmark = pytest.mark.usefixtures("overlap")

VOCAB = 320


@pytest.fixture
def pair(tiny_llama: Path) -> Iterator[Pair]:
    pair = Pair(tiny_llama)
    yield pair
    pair.close()


def request_of(prompt: list[int], output: list[int], **fields: object) -> Request:
    return Request(("r", 1), len(prompt), SamplingParams(**fields), [*prompt, *output], 0, b"")  # type: ignore[arg-type]


def told(events: list[Event], name: str) -> list[TokenLogprobs]:
    """All of a prompt's log-probabilities, checked to come in order and before the first token."""
    logprobs: list[TokenLogprobs] = []
    for event in (event for event in events if isinstance(event, PromptLogprobs) and event.request_id == name):
        assert event.position == len(logprobs) + 1
        logprobs += event.logprobs
    kinds = [type(event) for event in events if isinstance(event, PromptLogprobs | Tokens) and event.request_id == name]
    assert kinds == sorted(kinds, key=[PromptLogprobs, Tokens].index)
    return logprobs


def expected_logprobs(folder: Path, prompt: tuple[int, ...]) -> torch.Tensor:
    """[prompt - 1, vocab]: what transformers says of all positions but the first."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)


def assert_told_right(logprobs: list[TokenLogprobs], folder: Path, prompt: tuple[int, ...], count: int) -> None:
    expected = expected_logprobs(folder, prompt)
    assert [one.token_id for one in logprobs] == list(prompt[1:])
    own = expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert [one.logprob for one in logprobs] == pytest.approx(own.tolist(), abs=1e-4)
    best = expected.topk(count).values.flatten().tolist()
    assert [value for one in logprobs for _, value in one.top] == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("words", [[[5]], [[5, 6]], [[4, 5, 6], [6, 7]], [[9, 9]], [[5], [3, 4, 5, 8], [6, 6]]])
@pytest.mark.parametrize("output", [[], [5], [4, 5], [3, 4, 5], [6, 9], [5, 6, 5], [9, 9, 9]])
def test_bad_words_match_transformers(words: list[list[int]], output: list[int]) -> None:
    """transformers looks at the prompt too, vLLM at the output alone, so this prompt has none of the tokens."""
    request = request_of([100, 101], output, bad_words=tuple(map(tuple, words)))
    processor = NoBadWordsLogitsProcessor(words, eos_token_id=0)
    theirs = processor(torch.tensor([request.tokens]), torch.zeros(1, VOCAB))[0]
    assert sorted(set(banned_tokens(request))) == theirs.isinf().nonzero()[:, 0].tolist()


def test_bad_words_do_not_begin_in_the_prompt() -> None:
    assert list(banned_tokens(request_of([4, 5], [], bad_words=((4, 5, 6),)))) == []
    assert list(banned_tokens(request_of([4], [5], bad_words=((4, 5, 6), (5, 7))))) == [7]


@pytest.mark.parametrize("output", [[], [2], [2, 3], [2, 3, 4]])
def test_min_tokens_matches_transformers(output: list[int]) -> None:
    request = request_of([1, 1], output, stop_token_ids=(7, 8), min_tokens=2)
    processor = MinNewTokensLengthLogitsProcessor(2, 2, [7, 8], device="cpu")
    theirs = processor(torch.tensor([request.tokens]), torch.zeros(1, VOCAB))[0]
    assert list(banned_tokens(request)) == theirs.isinf().nonzero()[:, 0].tolist()


def test_a_word_of_several_tokens_passes_where_it_is_the_only_way_on() -> None:
    fields = {"allowed_token_ids": (5, 6), "bad_words": ((5, 5), (6,)), "stop_token_ids": (6,)}
    assert list(banned_tokens(request_of([1], [5], **fields))) == []
    assert list(banned_tokens(request_of([1], [6], **fields))) == [6]


def test_answers_hold_no_bad_words_and_only_allowed_tokens(pair: Pair) -> None:
    plain = local_tokens_of(pair, "plain", msgspec.structs.replace(GREEDY, max_tokens=12))
    words = ((plain[0],), (plain[2], plain[3]))
    banned = local_tokens_of(pair, "banned", msgspec.structs.replace(GREEDY, max_tokens=12, bad_words=words))
    assert plain[0] not in banned
    assert (plain[2], plain[3]) not in list(itertools.pairwise(banned))
    few = (plain[0] - 1, plain[0], 7)
    allowed = local_tokens_of(pair, "allowed", msgspec.structs.replace(GREEDY, max_tokens=12, allowed_token_ids=few))
    assert set(allowed) <= set(few)
    assert allowed[0] == plain[0]


def local_tokens_of(pair: Pair, name: str, sampling: SamplingParams) -> list[int]:
    pair.start(name, sampling=sampling)
    pair.pump()
    return pair.tokens(name)


@pytest.mark.parametrize("count", [0, 3, 20])
def test_prompt_logprobs_of_all_chunks_match_transformers(tiny_llama: Path, pair: Pair, count: int) -> None:
    """47 tokens in chunks of 16; the second time with the whole prompt in both caches."""
    sampling = msgspec.structs.replace(GREEDY, num_prompt_logprobs=count, num_logprobs=count)
    for name in ("first", "again"):
        pair.start(name, sampling=sampling)
        pair.pump()
        assert_told_right(told(pair.prefill_events, name), tiny_llama, PROMPT, count)
        assert told(pair.decode_events, name) == []
        assert len(pair.tokens(name)) == 6
    (tokens,) = of(pair.prefill_events, "again", Tokens)
    assert tokens.cached_tokens == 0  # nothing was skipped, as in vLLM
    pair.start("plain")
    pair.pump()
    (tokens,) = of(pair.prefill_events, "plain", Tokens)
    assert tokens.cached_tokens == 40  # but what was computed is there for others
    assert pair.tokens("plain") == pair.tokens("again")
    pair.assert_at_rest()


def test_prompt_logprobs_beside_other_requests(tiny_llama: Path, pair: Pair) -> None:
    """Rows of a flattened batch with chunks of several requests."""
    prompts = {"a": PROMPT[:9], "b": PROMPT[3:], "c": PROMPT[:1], "d": PROMPT[5:20], "e": PROMPT[7:]}
    for name, prompt in prompts.items():
        wanted = None if name == "b" else 2
        pair.start(name, prompt, msgspec.structs.replace(GREEDY, num_prompt_logprobs=wanted))
    pair.pump(100)
    for name in ("a", "d", "e"):
        assert_told_right(told(pair.prefill_events, name), tiny_llama, prompts[name], 2)
    assert told(pair.prefill_events, "b") == told(pair.prefill_events, "c") == []
    assert all(len(pair.tokens(name)) == 6 for name in prompts)


def preempt(role: LocalRole) -> Request:
    """As if another one had needed the blocks."""
    scheduler = role.scheduler
    request = scheduler.remove(("r", 1))
    assert request is not None
    scheduler._preemption.preempt(request)
    scheduler.add(request)
    return request


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_prompt_logprobs_of_a_preempted_request_come_once(tiny_llama: Path, num_steps: int, overlap: bool) -> None:
    """Preempted between two chunks and behind the prompt: positions are neither lost nor told twice."""
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events))
    role.handle(AddLocal("r", 1, PROMPT, msgspec.structs.replace(GREEDY, num_prompt_logprobs=1)))
    for _ in range(num_steps):
        turn(role)
    assert preempt(role).num_told_positions == min(16 * (num_steps + overlap) + 1, len(PROMPT))
    for _ in range(20):
        turn(role)
    assert of(events, "r", Finished)
    assert_told_right(told(events, "r"), tiny_llama, PROMPT, 1)
    assert token_ids(events, "r") == local_tokens(tiny_llama, PROMPT, GREEDY)


def test_a_cache_hit_ends_where_untold_positions_begin(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events))
    role.handle(AddLocal("warm", 1, PROMPT, GREEDY))
    for _ in range(20):
        turn(role)
    context = role.context
    for told_positions, cached in ((1, 0), (8, 0), (9, 8), (20, 16), (47, 40)):
        request = context.new_request(AddLocal("r", 1, PROMPT, msgspec.structs.replace(GREEDY, num_prompt_logprobs=0)))
        request.num_told_positions = told_positions
        context.blocks.take_prefix(request)
        assert request.num_computed_tokens == cached
        context.blocks.release(request)


SEEDED = [
    SamplingParams(temperature=0.9, seed=5, max_tokens=8),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.9, seed=6, max_tokens=8, frequency_penalty=0.7),
    SamplingParams(temperature=0.8, min_p=0.02, seed=7, max_tokens=8, repetition_penalty=1.2, bad_words=((9,),)),
    SamplingParams(temperature=0, max_tokens=8, presence_penalty=1.0, logit_bias={11: 2.0}),
]


def test_a_request_draws_the_same_alone_and_among_others(tiny_llama: Path, pair: Pair) -> None:
    """Apart on two workers in one batch, and alone on a third one."""
    for number, sampling in enumerate(SEEDED):
        pair.start(f"r{number}", PROMPT[number:], sampling)
    pair.pump(100)
    for number, sampling in enumerate(SEEDED):
        assert pair.tokens(f"r{number}") == local_tokens(tiny_llama, PROMPT[number:], sampling)


def test_a_preempted_request_draws_the_same(tiny_llama: Path) -> None:
    events: list[Event] = []
    role = LocalRole(make_context(tiny_llama, Role.AGGREGATED, events, blocks=16))
    longer = [msgspec.structs.replace(sampling, max_tokens=30) for sampling in SEEDED]
    for number, sampling in enumerate(longer):
        role.handle(AddLocal(f"r{number}", 1, PROMPT[number : number + 20], sampling))
    for _ in range(300):
        turn(role)
    assert role.stats().preemptions > 0
    for number, sampling in enumerate(longer):
        assert token_ids(events, f"r{number}") == local_tokens(tiny_llama, PROMPT[number : number + 20], sampling)
