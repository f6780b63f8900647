"""The HTTP API in front of scripted workers: answers, streams, errors, clients that leave."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from baton.rpc import sampling_pb2, worker_pb2
from gateway.text import TextCodec
from tests.fakes.gateway_stack import ANSWER, PROMPT, FakeCollector, Stack, eventually, running_stack
from tests.fakes.http_client import TEXT, USER, answers, connect, events
from tests.fakes.text_model import CONTEXT, write_text_model
from tests.fakes.workers import (
    admitted,
    finished,
    first_token,
    prefill_done,
    prompt_logprobs,
)

OTHER = 65  # the token "_"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec(model)


@pytest.fixture
async def stack(model: Path, codec: TextCodec) -> AsyncIterator[Stack]:
    async with running_stack(model, tool_call_parser="hermes", max_message_mib=1, http_port=0) as running:
        answers(running, codec, TEXT)
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    async with connect(stack) as opened:
        yield opened


async def completion(client: httpx2.AsyncClient, **body: Any) -> Any:
    response = await client.post("/v1/completions", json={"model": "tiny", "prompt": "Hello"} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_completion(client: httpx2.AsyncClient, codec: TextCodec) -> None:
    answer = await completion(client)
    count = len(codec.encode_bare(TEXT))
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": count,
        "total_tokens": 1 + count,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hello", ["Hello"]),
        (["Hello", "Hello world"], ["Hello", "Hello world"]),
        ([345], ["Hello"]),
        ([[345], [345, 341]], ["Hello", "Hello world"]),
    ],
)
async def test_prompts_of_every_kind(
    stack: Stack, client: httpx2.AsyncClient, codec: TextCodec, prompt: Any, expected: list[str]
) -> None:
    answer = await completion(client, prompt=prompt)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert [choice["text"] for choice in answer["choices"]] == [TEXT] * len(expected)
    got = {codec.decode(list(reserve.prompt_token_ids), False) for reserve in stack.decode.reserves}
    assert got == set(expected)
    assert answer["usage"]["prompt_tokens"] == sum(len(codec.encode(text)) for text in expected)


async def test_streamed_completion(client: httpx2.AsyncClient, codec: TextCodec) -> None:
    chunks = await events(client, "/v1/completions", prompt="Hello", stream_options={"include_usage": True})
    *parts, usage = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in parts) == TEXT
    assert [chunk["choices"][0]["finish_reason"] for chunk in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    assert all(chunk["usage"] is None for chunk in parts)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], len(codec.encode_bare(TEXT)))
    assert all("usage" not in chunk for chunk in await events(client, "/v1/completions", prompt="Hello"))


async def test_streams_of_several_prompts_keep_apart(client: httpx2.AsyncClient) -> None:
    chunks = await events(client, "/v1/completions", prompt=["Hello", "you"])
    for index in range(2):
        texts = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(texts) == TEXT


def scored(*token_ids: int) -> list[sampling_pb2.TokenLogprobs]:
    """Each token with one better alternative."""
    return [
        sampling_pb2.TokenLogprobs(
            sampled=sampling_pb2.Logprob(token_id=token, logprob=-1.5),
            top=[sampling_pb2.Logprob(token_id=OTHER, logprob=-0.5)],
        )
        for token in token_ids
    ]


def score(stack: Stack, prompt: list[int], answer: list[int]) -> None:
    """The workers tell log-probabilities of prompt and answer."""

    async def prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs(1, *prompt[1:]))
        event = first_token(answer[0])
        event.first_token.logprobs.CopyFrom(scored(answer[0])[0])
        yield event
        yield prefill_done()

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        later = worker_pb2.DecodeTokens(output_position=1, token_ids=answer[1:], logprobs=scored(*answer[1:]))
        yield worker_pb2.DecodeEvent(tokens=later)
        yield finished()

    stack.prefill.script, stack.decode.script = prefill, decode


async def test_echo_with_logprobs_scores_prompt_and_answer(
    stack: Stack, client: httpx2.AsyncClient, codec: TextCodec
) -> None:
    prompt, answer = codec.encode("Hello world"), codec.encode_bare(" you")
    score(stack, prompt, answer)
    names = [codec.token_bytes(token).decode() for token in prompt + answer]
    whole = (await completion(client, prompt=prompt, echo=True, logprobs=1, max_tokens=len(answer)))["choices"][0]
    assert whole["text"] == "Hello world you"
    assert whole["logprobs"]["tokens"] == names
    assert whole["logprobs"]["token_logprobs"] == [None, *[-1.0] * (len(prompt) - 1), *[-1.5] * len(answer)]
    assert whole["logprobs"]["top_logprobs"][-1] == {"_": -0.5, names[-1]: -1.5}
    assert whole["logprobs"]["text_offset"] == [len("".join(names[:n])) for n in range(len(names))]
    chunks = await events(client, "/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=len(answer))
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for logprobs in told for item in logprobs[field]] == whole["logprobs"][field]


async def test_prompt_logprobs_are_vllms(stack: Stack, client: httpx2.AsyncClient, codec: TextCodec) -> None:
    prompt = codec.encode("Hello world")
    score(stack, prompt, codec.encode_bare(" you"))
    (choice,) = (await completion(client, prompt=prompt, prompt_logprobs=1))["choices"]
    expected = {str(prompt[1]): {"logprob": -1.0, "rank": 1, "decoded_token": codec.token_bytes(prompt[1]).decode()}}
    assert choice["prompt_logprobs"] == [None, expected]
    response = await client.post("/v1/chat/completions", json={"messages": [USER], "prompt_logprobs": 0})
    assert response.json()["prompt_logprobs"][0] is None


async def test_chat_logprobs(stack: Stack, client: httpx2.AsyncClient, codec: TextCodec) -> None:
    answer = codec.encode_bare(" you")
    score(stack, [1, 2], answer)
    body = {"messages": [USER], "logprobs": True, "top_logprobs": 1}
    response = await client.post("/v1/chat/completions", json=body)
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert "".join(bytes(entry["bytes"]).decode() for entry in content) == " you"
    assert content[0]["top_logprobs"] == [{"token": "_", "logprob": -0.5, "bytes": [95]}]
    assert stack.decode.reserves[0].sampling.logprobs == 1
    chunks = await events(client, "/v1/chat/completions", **body)
    told = [e for chunk in chunks for e in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert told == content


async def test_chat(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={"messages": [USER]})
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT},
        "logprobs": None,
        "finish_reason": "stop",
    }


async def test_streamed_chat(client: httpx2.AsyncClient) -> None:
    first, *rest = await events(client, "/v1/chat/completions", messages=[USER])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in rest) == TEXT
    assert rest[-1]["choices"][0]["finish_reason"] == "stop"


async def test_tool_calls_whole_and_streamed(stack: Stack, client: httpx2.AsyncClient, codec: TextCodec) -> None:
    answers(stack, codec, CALL)
    body = {"messages": [USER], "tools": [TOOL], "max_tokens": 200}
    (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert (call["type"], call["id"].startswith("call_")) == ("function", True)
    chunks = await events(client, "/v1/chat/completions", **body)
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [delta["id"] for delta in deltas if "id" in delta] == [deltas[0]["id"]]
    assert deltas[0]["function"]["name"] == "weather"
    assert {delta["index"] for delta in deltas} == {0}
    assert "".join(delta["function"]["arguments"] for delta in deltas) == '{"city": "Rome"}'


async def test_an_earlier_call_and_its_result_are_told_to_the_model(stack: Stack, client: httpx2.AsyncClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    ]
    response = await client.post("/v1/chat/completions", json={"messages": turns})
    assert response.status_code == 200, response.text


async def test_tokenize_and_detokenize(client: httpx2.AsyncClient, codec: TextCodec) -> None:
    told = (await client.post("/tokenize", json={"prompt": "Hello world", "return_token_strs": True})).json()
    assert told["tokens"] == codec.encode("Hello world")
    assert (told["count"], told["max_model_len"], len(told["token_strs"])) == (2, CONTEXT, 2)
    assert (await client.post("/detokenize", json={"tokens": told["tokens"]})).json() == {"prompt": "Hello world"}
    of_chat = (await client.post("/tokenize", json={"messages": [USER]})).json()
    assert of_chat["tokens"] == codec.encode_chat([USER])


async def test_questions_to_the_server(client: httpx2.AsyncClient) -> None:
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert (await client.get("/v1/models/tiny")).json() == card
    assert (await client.get("/v1/models/other")).status_code == 404
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/ready")).status_code == 200
    assert (await client.get("/version")).json()["version"]


async def test_unknown_fields_are_left_aside(client: httpx2.AsyncClient) -> None:
    assert (await completion(client, user="me", metadata={"a": 1}, something_new=[1]))["choices"][0]["text"] == TEXT


async def test_ids_and_trace_context_travel(model: Path) -> None:
    collector = FakeCollector()
    endpoint = await collector.start()
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"x-request-id": "mine", "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    try:
        async with running_stack(model, otlp_endpoint=endpoint, http_port=0) as stack, connect(stack) as client:
            body = {"prompt": PROMPT, "max_tokens": len(ANSWER)}
            response = await client.post("/v1/completions", json=body, headers=headers)
            assert response.headers["x-request-id"] == "mine"
            assert response.json()["id"].startswith("cmpl-mine-")
            assert trace_id in stack.decode.metadata[0]["traceparent"]
            await eventually(lambda: collector.named("gateway.request"))
            assert collector.named("gateway.request")[0].trace_id.hex() == trace_id
    finally:
        await collector.close()
