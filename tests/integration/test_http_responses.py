"""/v1/responses and /openapi.json in front of scripted workers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.http.endpoints import make_endpoints
from gateway.text import TextCodec
from tests.fakes.gateway_stack import Stack, running_stack
from tests.fakes.http_client import TEXT, answers, connect
from tests.fakes.text_model import write_text_model

THOUGHTFUL = "<think>Hm.</think>Hello"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec(write_text_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def stack(tmp_path: Path, codec: TextCodec) -> AsyncIterator[Stack]:
    model = write_text_model(tmp_path)
    async with running_stack(model, tool_call_parser="hermes", reasoning_parser="qwen3", http_port=0) as running:
        answers(running, codec, TEXT)
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    async with connect(stack) as opened:
        yield opened


async def respond(client: httpx2.AsyncClient, **body: Any) -> Any:
    response = await client.post("/v1/responses", json={"input": "Hi"} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx2.AsyncClient, **body: Any) -> list[Any]:
    """All events: named as their type says, numbered without gaps."""
    response = await client.post("/v1/responses", json={"input": "Hi", "stream": True} | body)
    told = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


async def test_a_whole_response(client: httpx2.AsyncClient, codec: TextCodec) -> None:
    answer = await respond(client, instructions="Be kind.")
    assert (answer["object"], answer["status"], answer["incomplete_details"]) == ("response", "completed", None)
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    assert answer["usage"]["output_tokens"] == len(codec.encode_bare(TEXT))


async def test_a_cut_response_is_incomplete(client: httpx2.AsyncClient, stack: Stack) -> None:
    answer = await respond(client, max_output_tokens=1)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert stack.decode.reserves[0].sampling.max_tokens == 1


async def test_reasoning_and_calls_are_items_and_events_build_them(
    client: httpx2.AsyncClient, stack: Stack, codec: TextCodec
) -> None:
    answers(stack, codec, THOUGHTFUL + "\n" + CALL)
    whole = await respond(client, tools=[TOOL])
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert whole["output"][1]["content"][0]["text"] == "Hello"
    assert (whole["output"][2]["name"], whole["output"][2]["arguments"]) == ("weather", '{"city": "Rome"}')
    told = await stream(client, tools=[TOOL])
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert told[-1]["type"] == "response.completed"
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert told[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    for kind, expected in (
        ("response.reasoning_text", "Hm."),
        ("response.output_text", "Hello"),
        ("response.function_call_arguments", '{"city": "Rome"}'),
    ):
        assert "".join(event["delta"] for event in told if event["type"] == f"{kind}.delta") == expected
        assert len([event for event in told if event["type"] == f"{kind}.done"]) == 1


async def test_earlier_turns_are_told_to_the_model(client: httpx2.AsyncClient, stack: Stack, codec: TextCodec) -> None:
    turns = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "summary": [], "content": []},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "warm"},
    ]
    await respond(client, input=turns, instructions="Be kind.")
    prompt = codec.decode(list(stack.decode.reserves[0].prompt_token_ids), skip_special_tokens=False)
    for text in ("system\nBe kind.", "user\nWeather?", "tool\nwarm"):
        assert text in prompt


async def test_a_format_becomes_a_grammar(client: httpx2.AsyncClient, stack: Stack) -> None:
    schema = {"type": "object", "properties": {}}
    await respond(client, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert json.loads(stack.decode.reserves[0].sampling.structured.json_schema) == schema


async def test_what_is_not_served_is_refused(client: httpx2.AsyncClient) -> None:
    for body, param in (
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"tool_choice": "all", "tools": [TOOL]}, "tool_choice"),
    ):
        response = await client.post("/v1/responses", json={"input": "Hi"} | body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_openapi_document_has_every_endpoint(client: httpx2.AsyncClient, stack: Stack) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    expected = {spec.path: spec.method.lower() for spec in make_endpoints(front=None, pool=None)}  # type: ignore[arg-type]
    assert {path: next(iter(operations)) for path, operations in document["paths"].items()} == expected
    text = json.dumps(document)
    names = set(document["components"]["schemas"])
    assert all(f'"{name}"' in text for name in ("CompletionBody", "ChatBody", "ErrorAnswer"))
    assert all(part.split('"')[0] in names for part in text.split("#/components/schemas/")[1:])
