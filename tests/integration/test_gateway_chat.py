"""Chat, Tokenize and Detokenize over gRPC, in front of scripted workers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.rpc import inference_pb2, sampling_pb2
from baton.types import FinishReason
from gateway.text import TextCodec
from tests.fakes.gateway_stack import Stack, running_stack
from tests.fakes.text_model import CONTEXT, write_text_model
from tests.fakes.workers import decode_of, prefill_of

Pb = inference_pb2
PARAMETERS = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
WEATHER = Pb.Tool(name="weather", description="of a city", parameters=PARAMETERS)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
THINKING = "<think>Hm.</think>Hello"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec(model)


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model, tool_call_parser="hermes", reasoning_parser="qwen3") as running:
        yield running


def answers(stack: Stack, codec: TextCodec, text: str) -> None:
    """The workers answer `text`, a token at a time."""
    ids = codec.encode_bare(text)
    stack.prefill.script, stack.decode.script = prefill_of(ids), decode_of(ids, reason=FinishReason.STOP)


def chat(*tools: Pb.Tool, **more: Any) -> Pb.ChatPrompt:
    return Pb.ChatPrompt(messages=[Pb.ChatMessage(role="user", content="Hi")], tools=tools, **more)


async def ask(stack: Stack, prompt: Pb.ChatPrompt, **fields: Any) -> list[Pb.ChatResponse]:
    return [response async for response in stack.stub.Chat(Pb.ChatRequest(chat=prompt, **fields), timeout=10)]


async def test_reasoning_is_taken_out_of_the_text(stack: Stack, codec: TextCodec) -> None:
    answers(stack, codec, THINKING)
    responses = await ask(stack, chat())
    assert "".join(response.reasoning_content for response in responses) == "Hm."
    assert "".join(response.content for response in responses) == "Hello"
    assert responses[-1].finish_reason == Pb.CHAT_FINISH_REASON_STOP
    assert responses[-1].usage.completion_tokens == len(codec.encode_bare(THINKING))
    assert len(responses[0].trace_id) == 32


async def test_a_call_is_streamed_as_it_is_written(stack: Stack, codec: TextCodec) -> None:
    answers(stack, codec, CALL)
    responses = await ask(stack, chat(WEATHER))
    deltas = [delta for response in responses for delta in response.tool_calls]
    assert [(delta.index, delta.name) for delta in deltas if delta.id] == [(0, "weather")]
    assert "".join(delta.arguments for delta in deltas) == '{"city": "Rome"}'
    assert len(deltas) > 2
    assert "".join(response.content for response in responses) == ""
    assert responses[-1].finish_reason == Pb.CHAT_FINISH_REASON_TOOL_CALLS


async def test_without_tools_the_same_text_is_content(stack: Stack, codec: TextCodec) -> None:
    answers(stack, codec, CALL)
    for prompt, choice in ((chat(), None), (chat(WEATHER), Pb.ToolChoice(mode=Pb.TOOL_MODE_NONE))):
        responses = await ask(stack, prompt, tool_choice=choice)
        assert "".join(response.content for response in responses) == CALL
        assert responses[-1].finish_reason == Pb.CHAT_FINISH_REASON_STOP


async def test_a_required_call_is_held_to_the_tools_schemas(stack: Stack, codec: TextCodec) -> None:
    answers(stack, codec, '[{"name": "weather", "parameters": {"city": "Rome"}}]')
    required = Pb.ToolChoice(mode=Pb.TOOL_MODE_REQUIRED)
    responses = await ask(stack, chat(WEATHER, Pb.Tool(name="time")), tool_choice=required, parallel_tool_calls=False)
    assert "".join(delta.arguments for response in responses for delta in response.tool_calls) == '{"city": "Rome"}'
    schema = json.loads(stack.decode.reserves[0].sampling.structured.json_schema)
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    names = [item["properties"]["name"]["enum"] for item in schema["items"]["anyOf"]]
    assert names == [["weather"], ["time"]]
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == json.loads(PARAMETERS)


async def test_a_named_call_is_its_arguments(stack: Stack, codec: TextCodec) -> None:
    answers(stack, codec, '{"city": "Rome"}')
    responses = await ask(stack, chat(WEATHER), tool_choice=Pb.ToolChoice(function="weather"))
    deltas = [delta for response in responses for delta in response.tool_calls]
    assert deltas[0].name == "weather"
    assert "".join(delta.arguments for delta in deltas) == '{"city": "Rome"}'
    assert responses[-1].finish_reason == Pb.CHAT_FINISH_REASON_STOP
    assert stack.decode.reserves[0].sampling.structured.json_schema == PARAMETERS


BAD_CHATS: list[tuple[Pb.ChatPrompt, dict[str, Any], str]] = [
    (chat(Pb.Tool(name="no spaces")), {}, "tools[0].function.name: got 'no spaces'"),
    (chat(WEATHER, WEATHER), {}, "tools[1].function.name: got 'weather' twice"),
    (chat(Pb.Tool(name="t", parameters="[]")), {}, "tools[0].function.parameters: got a JSON list"),
    (chat(*(Pb.Tool(name=f"t{n}") for n in range(129))), {}, "tools: got 129"),
    (chat(), {"tool_choice": Pb.ToolChoice(mode=Pb.TOOL_MODE_AUTO)}, "tool_choice: got one without tools"),
    (chat(WEATHER), {"tool_choice": Pb.ToolChoice(function="time")}, "expected one of tools (weather)"),
    (
        chat(WEATHER),
        {
            "tool_choice": Pb.ToolChoice(function="weather"),
            "sampling": sampling_pb2.SamplingParams(structured=sampling_pb2.StructuredOutput(json_object=True)),
        },
        "drop the grammar",
    ),
    (chat(template_kwargs='{"messages": []}'), {}, "chat_template_kwargs: got 'messages'"),
    (chat(template_kwargs="1"), {}, "chat_template_kwargs: got a JSON int"),
    (chat(documents=["x"]), {}, "documents[0]: got 'x', which is no JSON"),
    (chat(add_generation_prompt=True, continue_final_message=True), {}, "continue_final_message: got true"),
]


async def test_what_cannot_be_served_is_named(stack: Stack) -> None:
    for prompt, fields, message in BAD_CHATS:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stack, prompt, **fields)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert message in str(caught.value.details())
    assert not stack.decode.reserves


async def test_auto_needs_a_known_format(model: Path) -> None:
    async with running_stack(model) as stack:
        with pytest.raises(grpc.aio.AioRpcError, match="--tool-call-parser"):
            await ask(stack, chat(WEATHER))


async def test_a_forced_call_is_no_reasoning(model: Path, codec: TextCodec) -> None:
    async with running_stack(model, reasoning_parser="deepseek_r1") as stack:
        answers(stack, codec, '{"city": "Rome"}')
        responses = await ask(stack, chat(WEATHER), tool_choice=Pb.ToolChoice(function="weather"))
        assert "".join(delta.arguments for response in responses for delta in response.tool_calls) == '{"city": "Rome"}'
        answers(stack, codec, "Hm.</think>Hello")
        responses = await ask(stack, chat())
        assert "".join(response.reasoning_content for response in responses) == "Hm."


async def test_a_message_can_be_continued(stack: Stack, codec: TextCodec) -> None:
    messages = [Pb.ChatMessage(role="user", content="Hi"), Pb.ChatMessage(role="assistant", content="The sky")]
    await ask(stack, Pb.ChatPrompt(messages=messages, continue_final_message=True))
    prompt = codec.decode(list(stack.decode.reserves[0].prompt_token_ids), skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nThe sky")


async def test_tokenize_and_detokenize(stack: Stack, codec: TextCodec) -> None:
    told = await stack.stub.Tokenize(Pb.TokenizeRequest(text="Hello wörld", return_token_strs=True))
    assert list(told.token_ids) == codec.encode("Hello wörld")
    assert [codec.token_str(token_id) for token_id in told.token_ids] == list(told.token_strs)
    assert told.max_model_len == CONTEXT
    back = await stack.stub.Detokenize(Pb.DetokenizeRequest(token_ids=told.token_ids))
    assert back.text == "Hello wörld"
    of_chat = await stack.stub.Tokenize(Pb.TokenizeRequest(chat=chat()))
    assert list(of_chat.token_ids) == codec.encode_chat([{"role": "user", "content": "Hi"}])
    text = (await stack.stub.Detokenize(Pb.DetokenizeRequest(token_ids=of_chat.token_ids))).text
    assert text.startswith("<|im_start|>user")
    hidden = Pb.DetokenizeRequest(token_ids=of_chat.token_ids, skip_special_tokens=True)
    assert "<|im_start|>" not in (await stack.stub.Detokenize(hidden)).text


async def test_bad_questions_to_the_tokenizer(stack: Stack) -> None:
    for method, question, code in (
        ("Tokenize", Pb.TokenizeRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        ("Tokenize", Pb.TokenizeRequest(model="other", text="Hi"), grpc.StatusCode.NOT_FOUND),
        ("Detokenize", Pb.DetokenizeRequest(token_ids=[10**6]), grpc.StatusCode.INVALID_ARGUMENT),
        ("Detokenize", Pb.DetokenizeRequest(model="other"), grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stack.stub, method)(question)
        assert caught.value.code() is code
