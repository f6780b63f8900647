"""Every request a client can get wrong, and the message that tells how to put it right."""

import math
from pathlib import Path

import pytest

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec, load_model_spec
from baton.rpc import inference_pb2, sampling_pb2
from baton.telemetry.tracing import Tracing
from gateway.no_text import TokensOnlyCodec
from gateway.request_trace import RequestTrace
from gateway.text import TextCodec
from gateway.validate import ValidatedRequest, Validator
from tests.fakes.text_model import CONTEXT, VOCAB_SIZE, byte_level_tokenizer, write_text_model

Request = inference_pb2.GenerateRequest
Sampling = sampling_pb2.SamplingParams
Structured = sampling_pb2.StructuredOutput
NAN, INF = math.nan, math.inf
A = byte_level_tokenizer().token_to_id("a")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return load_model_spec(write_text_model(tmp_path_factory.mktemp("model")), "tiny")


@pytest.fixture(scope="module")
def validator(spec: ModelSpec) -> Validator:
    return Validator(spec, TextCodec(Path(spec.path)), max_message_mib=4)


async def validate(validator: Validator, request: inference_pb2.GenerateRequest) -> ValidatedRequest:
    tracing = Tracing("test", None)
    return await validator.validate(request, CONTEXT, RequestTrace(tracing, None))


async def error_of(validator: Validator, request: inference_pb2.GenerateRequest) -> BatonError:
    with pytest.raises(BatonError) as caught:
        await validate(validator, request)
    return caught.value


def token_prompt(*token_ids: int) -> inference_pb2.TokenPrompt:
    return inference_pb2.TokenPrompt(token_ids=token_ids)


def chat(*messages: tuple[str, str]) -> inference_pb2.ChatPrompt:
    return inference_pb2.ChatPrompt(messages=[{"role": role, "content": content} for role, content in messages])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(), "prompt: got none, expected text, chat or tokens"),
        (Request(text="a", priority=101), "priority: got 101, expected -100 (earliest) to 100"),
        (Request(text="a", priority=-101), "priority: got -101, expected -100 (earliest) to 100"),
        (Request(text=""), "prompt.text: got an empty string"),
        (Request(tokens=token_prompt()), "prompt.tokens: got no token ids"),
        (
            Request(tokens=token_prompt(1, VOCAB_SIZE)),
            f"token_ids[1]: got {VOCAB_SIZE}, expected 0 to {VOCAB_SIZE - 1}",
        ),
        (Request(tokens=token_prompt(2**32 - 1)), "token_ids[0]: got 4294967295, expected 0 to"),
        (
            Request(tokens=token_prompt(*[5] * CONTEXT)),
            "prompt: got 256 tokens, expected at most 255 (context 256 minus",
        ),
        (Request(text="日本語 " * 2000), "tokens, expected at most 255 (context 256 minus 1 token of output); shorten"),
        (Request(chat=chat()), "prompt.chat.messages: got an empty list"),
        (Request(chat=chat(("robot", "x"))), "messages[0].role: got 'robot', expected one of system, developer, user"),
        (Request(chat=chat(("system", "x"), ("user", ""))), "messages[1].content: got an empty string"),
        (Request(chat=chat(("assistant", "x"))), "refused the messages: the assistant cannot begin"),
        (Request(text="x", request_id="r" * 129), "request_id: got 129 characters, expected at most 128"),
        (Request(text="x", request_id="a\nb"), "request_id: got 'a\\nb', expected printable characters"),
    ],
)
async def test_bad_prompt(validator: Validator, request_: inference_pb2.GenerateRequest, message: str) -> None:
    error = await error_of(validator, request_)
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert message in error.message


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            Sampling(temperature=-0.1),
            "temperature: got -0.1, expected 0 (greedy) to 100; change it or leave it out for 1",
        ),
        (Sampling(temperature=100.5), "temperature: got 100.5, expected"),
        (Sampling(temperature=NAN), "temperature: got nan, expected"),
        (Sampling(temperature=INF), "temperature: got inf, expected"),
        (Sampling(top_k=-2), "top_k: got -2, expected 0 (all tokens, as is -1) or more"),
        (Sampling(top_p=0.0), "top_p: got 0, expected above 0 and at most 1"),
        (Sampling(top_p=1.5), "top_p: got 1.5, expected"),
        (Sampling(top_p=NAN), "top_p: got nan, expected"),
        (Sampling(min_p=-0.5), "min_p: got -0.5, expected 0 to 1"),
        (Sampling(min_p=INF), "min_p: got inf, expected"),
        (Sampling(presence_penalty=2.5), "presence_penalty: got 2.5, expected -2 to 2"),
        (Sampling(frequency_penalty=-INF), "frequency_penalty: got -inf, expected -2 to 2"),
        (Sampling(repetition_penalty=0.0), "repetition_penalty: got 0, expected a finite number above 0"),
        (Sampling(repetition_penalty=INF), "repetition_penalty: got inf, expected"),
        (Sampling(logit_bias={5: 101.0}), "logit_bias: got 101 for token 5, expected -100 to 100"),
        (Sampling(logit_bias={5: NAN}), "logit_bias: got nan for token 5, expected"),
        (Sampling(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias: got token id {VOCAB_SIZE}, expected 0 to"),
        (Sampling(logit_bias={-1: 1.0}), "logit_bias: got token id -1, expected 0 to"),
        (Sampling(logit_bias=dict.fromkeys(range(301), 1.0)), "logit_bias: got 301 entries, expected at most 300"),
        (Sampling(seed=2**63), f"seed: got {2**63}, expected 0 to {2**63 - 1}"),
        (Sampling(max_tokens=0), "max_tokens: got 0, expected at least 1"),
        (Sampling(max_tokens=-7), "max_tokens: got -7, expected at least 1"),
        (
            Sampling(max_tokens=9000),
            "max_tokens: got 9000, expected at most 253 (context 256 minus 3 prompt tokens); "
            "shorten the prompt or lower max_tokens",
        ),
        (Sampling(min_tokens=-1), "min_tokens: got -1, expected 0 to 253 (max_tokens)"),
        (Sampling(min_tokens=9, max_tokens=8), "min_tokens: got 9, expected 0 to 8 (max_tokens)"),
        (Sampling(structured=Structured()), "structured: got none of its kinds, expected exactly one of json_schema,"),
        (Sampling(structured=Structured(json_object=False)), "structured: got none of its kinds"),
        (
            Sampling(structured=Structured(regex="a" * 70000)),
            "structured.regex: got 70000 bytes, expected",
        ),
        (Sampling(structured=Structured(json_schema="{")), "structured.json_schema: got no valid JSON"),
        (Sampling(structured=Structured(choice=sampling_pb2.Choice())), "structured.choice: got 0 texts"),
        (Sampling(stop=["x"] * 17), "stop: got 17 strings, expected at most 16"),
        (Sampling(stop=["x", ""]), "stop[1]: got 0 characters, expected 1 to 256"),
        (Sampling(stop=["x" * 257]), "stop[0]: got 257 characters, expected 1 to 256"),
        (Sampling(stop_token_ids=[-1]), "stop_token_ids: got token id -1, expected 0 to"),
        (Sampling(stop_token_ids=[VOCAB_SIZE]), "stop_token_ids: got token id"),
        (Sampling(stop_token_ids=list(range(65))), "stop_token_ids: got 65 ids, expected at most 64"),
        (Sampling(logprobs=21), "logprobs: got 21, expected 0 to 20"),
        (Sampling(logprobs=-1), "logprobs: got -1, expected 0 to 20"),
        (Sampling(prompt_logprobs=21), "prompt_logprobs: got 21, expected 0 to 20"),
        (Sampling(prompt_logprobs=-1), "prompt_logprobs: got -1, expected 0 to 20"),
        (Sampling(allowed_token_ids=[3, VOCAB_SIZE]), "allowed_token_ids: got token id"),
        (Sampling(allowed_token_ids=[3] * 1025), "allowed_token_ids: got 1025 ids, expected at most 1024"),
        (Sampling(bad_words=["x"] * 65), "bad_words: got 65 words, expected at most 64"),
        (Sampling(bad_words=["x", "y" * 257]), "bad_words[1]: got 257 characters, expected at most 256"),
        (Sampling(bad_words=["x", " \n"]), "bad_words[1]: got ' \\n', expected a word with more than white space"),
        (Sampling(bad_words=["x", "zq" * 100]), "bad_words[1]: got a word of 200 tokens, expected at most 64; shorten"),
        (Sampling(bad_word_token_ids=[{"token_ids": [1]}]), "bad_word_token_ids: got a value, expected none"),
        (
            Sampling(allowed_token_ids=[A], bad_words=["a"]),
            "allowed_token_ids: got 1 ids that are all banned by bad_words",
        ),
        (
            Sampling(allowed_token_ids=[9], stop_token_ids=[9], min_tokens=1),
            "allowed_token_ids: got 1 ids that are all banned",
        ),
        (Sampling(n=17), "n: got 17, expected 1 to 16; send more requests"),
        (Sampling(n=0), "n: got 0, expected 1 to 16"),
        (Sampling(n=3, best_of=2), "best_of: got 2, expected 3 (n) to 16"),
        (Sampling(best_of=17), "best_of: got 17, expected 1 (n) to 16"),
        (Sampling(n=2, temperature=0), "n: got 2, expected 1 with temperature 0: greedy answers are all the same"),
        (Sampling(best_of=2, temperature=0), "best_of: got 2, expected 1 with temperature 0"),
    ],
)
async def test_bad_sampling(validator: Validator, sampling: sampling_pb2.SamplingParams, message: str) -> None:
    error = await error_of(validator, Request(tokens=token_prompt(4, 5, 6), sampling=sampling))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert error.message.startswith(message)


async def test_unknown_model_lists_the_served_one(validator: Validator) -> None:
    error = await error_of(validator, Request(text="x", model="gpt"))
    assert error.code is ErrorCode.NOT_FOUND
    assert error.message == "model: got 'gpt', expected one of: tiny; change model or leave it empty"


async def test_big_request(validator: Validator) -> None:
    error = await error_of(validator, Request(text="x" * (50 << 20)))
    assert error.code is ErrorCode.RESOURCE_EXHAUSTED
    assert error.message == (
        "request is 50.0 MiB, the limit is 4 MiB; shorten the prompt, send token ids, or raise --max-message-mib"
    )


async def test_defaults(validator: Validator, spec: ModelSpec) -> None:
    request = await validate(validator, Request(tokens=token_prompt(7, 8)))
    sampling = request.sampling
    assert len(request.request_id) == 32
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_tokens) == (1.0, 0, 1.0, 0)
    assert sampling.max_tokens == CONTEXT - 2
    assert sampling.stop_token_ids == spec.eos_token_ids
    assert sampling.num_logprobs is None
    assert sampling.num_prompt_logprobs is None
    assert (sampling.bad_words, sampling.allowed_token_ids) == ((), ())
    assert (request.skip_special_tokens, request.spaces_between_special_tokens) == (True, True)
    assert (request.echo, request.prompt_only) == (None, False)
    assert 0 <= sampling.seed < 2**63
    again = await validate(validator, Request(tokens=token_prompt(7, 8)))
    assert again.sampling.seed != sampling.seed


async def test_values_at_the_edge_pass(validator: Validator, spec: ModelSpec) -> None:
    pb = Sampling(
        temperature=0,
        top_k=5,
        top_p=1,
        min_p=1,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=0.5,
        logit_bias={0: -100, VOCAB_SIZE - 1: 100},
        seed=2**63 - 1,
        max_tokens=1,
        min_tokens=1,
        stop=["x" * 256] * 16,
        include_stop_str_in_output=True,
        stop_token_ids=[0, VOCAB_SIZE - 1, 0],
        ignore_eos=True,
        logprobs=20,
        n=1,
        bad_words=["x" * 64] * 64,
        allowed_token_ids=[3] * 1024,
        prompt_logprobs=20,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )
    request = await validate(validator, Request(tokens=token_prompt(*[5] * (CONTEXT - 1)), sampling=pb, model="tiny"))
    sampling = request.sampling
    assert sampling.stop_token_ids == (0, VOCAB_SIZE - 1)
    assert (sampling.seed, sampling.max_tokens, sampling.num_logprobs) == (2**63 - 1, 1, 20)
    assert (sampling.presence_penalty, sampling.repetition_penalty) == (-2, 0.5)
    assert sampling.logit_bias == {0: -100.0, VOCAB_SIZE - 1: 100.0}
    assert len(request.stop_strings) == 16
    assert request.include_stop_str_in_output
    assert sampling.allowed_token_ids == (3,)
    assert sampling.num_prompt_logprobs == 20
    assert not request.skip_special_tokens
    assert not request.spaces_between_special_tokens


async def test_own_stop_tokens_join_the_models(validator: Validator, spec: ModelSpec) -> None:
    request = await validate(validator, Request(text="x", sampling=Sampling(stop_token_ids=[9])))
    assert request.sampling.stop_token_ids == (9, *spec.eos_token_ids)


async def test_ignore_eos_leaves_only_own_stop_tokens(validator: Validator) -> None:
    request = await validate(validator, Request(text="x", sampling=Sampling(stop_token_ids=[9], ignore_eos=True)))
    assert request.sampling.stop_token_ids == (9,)


async def test_long_text_that_fits_passes(validator: Validator, spec: ModelSpec) -> None:
    """The number of tokens counts, not the length of the text."""
    text = "the quick brown fox " * 600
    tokens = len(TextCodec(Path(spec.path)).encode(text))
    request = await validator.validate(Request(text=text), tokens + 1, RequestTrace(Tracing("test", None), None))
    assert request.sampling.max_tokens == 1


async def test_empty_assistant_message_passes(validator: Validator) -> None:
    await validate(validator, Request(chat=chat(("user", "Hi"), ("assistant", ""), ("user", "Hi?"))))


async def test_minus_one_is_no_top_k(validator: Validator) -> None:
    request = await validate(validator, Request(text="x", sampling=Sampling(top_k=-1)))
    assert request.sampling.top_k == 0


async def test_echo_gives_the_prompt_as_text(validator: Validator, spec: ModelSpec) -> None:
    """A text as it was sent, all else decoded; special tokens as skip_special_tokens says."""
    codec = TextCodec(Path(spec.path))
    ids = codec.encode("<|im_start|>the fox")
    for sampling, expected in ((Sampling(), "the fox"), (Sampling(skip_special_tokens=False), "<|im_start|>the fox")):
        by_ids = await validate(validator, Request(tokens=token_prompt(*ids), echo=True, sampling=sampling))
        assert by_ids.echo == expected
        as_text = await validate(validator, Request(text="<|im_start|>the fox", echo=True, sampling=sampling))
        assert as_text.echo == "<|im_start|>the fox"
    as_chat = await validate(validator, Request(chat=chat(("user", "Hi")), echo=True))
    assert "user\nHi" in (as_chat.echo or "")


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), None),
        (Sampling(logprobs=3), 3),
        (Sampling(logprobs=3, prompt_logprobs=1), 1),
        (Sampling(prompt_logprobs=0), 0),
    ],
)
async def test_echo_with_logprobs_means_those_of_the_prompt_too(
    validator: Validator, sampling: sampling_pb2.SamplingParams, expected: int | None
) -> None:
    request = await validate(validator, Request(text="x", echo=True, sampling=sampling))
    assert request.sampling.num_prompt_logprobs == expected
    without = await validate(validator, Request(text="x", sampling=Sampling(logprobs=3)))
    assert without.sampling.num_prompt_logprobs is None


async def test_echo_alone_computes_one_token_that_is_not_shown(validator: Validator) -> None:
    request = await validate(validator, Request(text="x", echo=True, sampling=Sampling(max_tokens=0)))
    assert (request.sampling.max_tokens, request.prompt_only) == (1, True)


async def test_without_a_tokenizer_token_ids_are_all_a_client_can_send(spec: ModelSpec) -> None:
    validator = Validator(spec, TokensOnlyCodec(Path(spec.path)), max_message_mib=4)
    checked = await validate(validator, Request(tokens=token_prompt(1, 2)))
    assert checked.prompt_token_ids == [1, 2]
    for request, message in (
        (Request(text="Hi"), "prompt.text: got a text, but the model has no tokenizer"),
        (Request(chat=chat(("user", "Hi"))), "prompt.chat: got a chat, but the model has no tokenizer"),
        (
            Request(tokens=token_prompt(1), sampling=Sampling(stop=["."])),
            "stop: got stop strings, but the model",
        ),
    ):
        error = await error_of(validator, request)
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert message in error.message
