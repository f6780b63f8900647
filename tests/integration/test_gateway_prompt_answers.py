"""What a client gets of its own prompt, and which tokens show in the text: echo, prompt_logprobs, special tokens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.types import Role
from gateway.text import TextCodec
from tests.fakes.gateway_stack import ANSWER, Stack, ids_of, running_stack
from tests.fakes.text_model import byte_level_tokenizer, write_text_model
from tests.fakes.workers import admitted, finished, first_token, prefill_done, prefill_of, prompt_logprobs, tokens

Sampling = sampling_pb2.SamplingParams
TEXT = "the fox jumps over a bad zoo"
END = byte_level_tokenizer().token_to_id("<|im_end|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec(model)


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model) as running:
        yield running


def told(responses: list[inference_pb2.GenerateResponse]) -> list[int | None]:
    """The prompt tokens that log-probabilities came for; None for an empty entry."""
    entries = [entry for response in responses for entry in response.prompt_logprobs]
    return [entry.sampled.token_id if entry.HasField("sampled") else None for entry in entries]


def text_of(responses: list[inference_pb2.GenerateResponse]) -> str:
    return "".join(response.text for response in responses)


async def test_prompt_logprobs_come_first_and_each_once(stack: Stack, codec: TextCodec) -> None:
    ids = codec.encode(TEXT)
    assert len(ids) > 4

    async def prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs(1, *ids[1:3]))
        yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs(2, *ids[2:4]))  # one of them again
        yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs(4, *ids[4:]))
        yield first_token(ANSWER[0])
        yield prefill_done()

    stack.prefill.script = prefill
    responses = await stack.generate(text=TEXT, sampling=Sampling(prompt_logprobs=1))
    assert told(responses) == [None, *ids[1:]]
    assert ids_of(responses) == ANSWER
    with_tokens = [at for at, response in enumerate(responses) if response.token_ids]
    with_prompt = [at for at, response in enumerate(responses) if response.prompt_logprobs]
    assert max(with_prompt) <= min(with_tokens)
    assert all(response.trace_id == "" for response in responses[1:])
    assert len(responses[0].trace_id) == 32
    for request in (stack.prefill.requests[0], stack.decode.reserves[0]):
        assert request.sampling.prompt_logprobs == 1


async def test_prompt_logprobs_of_one_worker(model: Path, codec: TextCodec) -> None:
    ids = codec.encode(TEXT)

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield worker_pb2.DecodeEvent(prompt_logprobs=prompt_logprobs(1, *ids[1:]))
        yield tokens(0, *ANSWER)
        yield finished()

    async with running_stack(model, roles=[("a0", Role.AGGREGATED)]) as stack:
        stack.workers["a0"].decode.script = decode
        responses = await stack.generate(text=TEXT, sampling=Sampling(prompt_logprobs=0))
        assert told(responses) == [None, *ids[1:]]
        assert ids_of(responses) == ANSWER


async def test_the_only_token_of_a_prompt_has_an_empty_entry(stack: Stack) -> None:
    one = inference_pb2.TokenPrompt(token_ids=[50])
    responses = await stack.generate(tokens=one, sampling=Sampling(prompt_logprobs=2))
    assert told(responses) == [None]


async def test_echo_comes_in_front_of_the_answer(stack: Stack, codec: TextCodec) -> None:
    plain = text_of(await stack.generate(text=TEXT))
    responses = await stack.generate(text=TEXT, echo=True, sampling=Sampling(stop=["fox"]))
    assert text_of(responses) == TEXT + plain  # the prompt is not searched for stop strings
    assert list(responses[0].prompt_token_ids) == codec.encode(TEXT)
    assert responses[0].text.startswith(TEXT)
    assert not any(response.prompt_token_ids for response in responses[1:])
    assert ids_of(responses) == ANSWER
    assert told(responses) == []
    assert responses[-1].usage.completion_tokens == len(ANSWER)


async def test_echo_with_logprobs_asks_for_those_of_the_prompt(stack: Stack) -> None:
    await stack.generate(text=TEXT, echo=True, sampling=Sampling(logprobs=3))
    assert stack.prefill.requests[0].sampling.prompt_logprobs == 3


async def test_echo_alone_shows_no_answer(stack: Stack) -> None:
    stack.prefill.script = prefill_of(ANSWER)
    responses = await stack.generate(text=TEXT, echo=True, sampling=Sampling(max_tokens=0))
    assert text_of(responses) == TEXT
    assert ids_of(responses) == []
    assert stack.prefill.requests[0].sampling.max_tokens == 1
    last = responses[-1]
    assert (last.usage.completion_tokens, last.finish_reason) == (0, sampling_pb2.FINISH_REASON_LENGTH)
    await stack.quiet()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), "the fox"),
        (Sampling(skip_special_tokens=False), "the<|im_end|> fox"),
        (Sampling(skip_special_tokens=False, stop_token_ids=[END]), "the fox"),
        (Sampling(skip_special_tokens=False, include_stop_str_in_output=True), "the<|im_end|> fox"),
    ],
)
async def test_special_tokens_show_when_they_are_wished(
    stack: Stack, codec: TextCodec, sampling: sampling_pb2.SamplingParams, expected: str
) -> None:
    """These workers go on behind the end, so that its text is told from that of other tokens."""
    answer = [*codec.encode("the"), END, *codec.encode(" fox")]

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(1, *answer[1:])
        yield finished()

    stack.prefill.script, stack.decode.script = prefill_of(answer), decode
    sampling.ignore_eos = not sampling.include_stop_str_in_output
    assert text_of(await stack.generate(text=TEXT, sampling=sampling)) == expected


async def test_workers_get_words_as_tokens_and_no_text(stack: Stack, codec: TextCodec) -> None:
    sampling = Sampling(bad_words=["fox"], allowed_token_ids=[100, 101], skip_special_tokens=False)
    await stack.generate(text=TEXT, sampling=sampling)
    got = stack.prefill.requests[0].sampling
    assert list(got.bad_word_token_ids[0].token_ids) == codec.encode_bare("fox")
    assert list(got.allowed_token_ids) == [100, 101]
    assert list(got.bad_words) == []
    assert not got.HasField("skip_special_tokens")
