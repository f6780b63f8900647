"""/v1/responses: requests, as far as they are about text and functions."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.http.chat_messages import Content, text_of
from gateway.http.fields import Int32, SamplingFields, sampling_of
from gateway.http.structured import JsonSchemaFormat, ResponseFormat, as_text

Json = dict[str, Any]


class InputItem(msgspec.Struct, kw_only=True):
    """A message, a function call of an earlier turn, its output, or the reasoning of one."""

    type: str = "message"
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """What the text must be: response_format without its inner object."""

    type: str
    name: str = ""
    schema: Json | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """About the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None  # taken, and left to the model


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function; built-in tools are not served."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, kw_only=True):
    """The function that is to be called."""

    type: str
    name: str = ""


class ResponsesBody(SamplingFields, kw_only=True):
    """A request; nothing is stored, so nothing earlier can be named."""

    input: str | Annotated[list[InputItem], Meta(max_length=4096)]
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None


_MODES = {
    "none": inference_pb2.TOOL_MODE_NONE,
    "auto": inference_pb2.TOOL_MODE_AUTO,
    "required": inference_pb2.TOOL_MODE_REQUIRED,
}


def message_of(body: ResponsesBody, request_id: str) -> inference_pb2.ChatRequest:
    """The service's request.

    Raises:
        BatonError: INVALID_ARGUMENT for what is not served.
    """
    if body.previous_response_id:
        raise invalid("previous_response_id: got one, but no response is stored; send the whole conversation as input")
    if body.background:
        raise invalid("background: got true, expected false: nothing is stored; wait for the answer, or stream it")
    if body.num_answers > 1:
        raise invalid(f"n: got {body.n}, expected 1: a response is one answer; send several requests")
    if body.response_format is not None:
        raise invalid("response_format: got one, expected text.format; move it there")
    body.response_format = _response_format(body.text)
    request = inference_pb2.ChatRequest(
        request_id=request_id,
        model=body.model or "",
        chat=inference_pb2.ChatPrompt(messages=_messages(body), tools=_tools(body.tools or [])),
        sampling=sampling_of(body, body.max_output_tokens, None),
        priority=body.priority or 0,
    )
    if body.parallel_tool_calls is not None:
        request.parallel_tool_calls = body.parallel_tool_calls
    if isinstance(body.tool_choice, FunctionChoice):
        request.tool_choice.function = body.tool_choice.name
    elif body.tool_choice is not None and (body.tools or body.tool_choice != "auto"):
        if body.tool_choice not in _MODES:
            raise invalid(f"tool_choice: got {body.tool_choice[:64]!r}, expected auto, none, required or a function")
        request.tool_choice.mode = _MODES[body.tool_choice]
    return request


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    named = JsonSchemaFormat(name=text.format.name, schema=text.format.schema)
    return ResponseFormat(type=text.format.type, json_schema=named)


def _messages(body: ResponsesBody) -> list[inference_pb2.ChatMessage]:
    messages = []
    if body.instructions:
        messages.append(inference_pb2.ChatMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, inference_pb2.ChatMessage(role="user", content=body.input)]
    for index, item in enumerate(body.input):
        _add(messages, f"input[{index}]", item)
    return messages


def _add(messages: list[inference_pb2.ChatMessage], where: str, item: InputItem) -> None:
    match item.type:
        case "message":
            content = text_of(f"{where}.content", item.content)
            messages.append(inference_pb2.ChatMessage(role=item.role, content=content))
        case "function_call":
            # Calls of one turn stand in one message.
            if not messages or messages[-1].role != "assistant":
                messages.append(inference_pb2.ChatMessage(role="assistant"))
            messages[-1].tool_calls.add(id=item.call_id, name=item.name, arguments=item.arguments)
        case "function_call_output":
            output = text_of(f"{where}.output", item.output)
            messages.append(inference_pb2.ChatMessage(role="tool", tool_call_id=item.call_id, content=output))
        case "reasoning":
            return  # models do not read what they thought in earlier turns
        case other:
            raise invalid(
                f"{where}.type: got {other[:64]!r}, expected message, function_call, function_call_output or "
                "reasoning; drop the item"
            )


def _tools(tools: list[FunctionTool]) -> list[inference_pb2.Tool]:
    for index, tool in enumerate(tools):
        if tool.type != "function":
            raise invalid(f"tools[{index}].type: got {tool.type[:64]!r}, expected function; drop the tool")
    return [
        inference_pb2.Tool(
            name=tool.name,
            description=tool.description,
            parameters="" if tool.parameters is None else as_text(tool.parameters),
        )
        for tool in tools
    ]
