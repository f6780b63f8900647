"""/v1/chat/completions: requests."""

import msgspec

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.http.chat_messages import Documents, Json, Messages, Tools, chat_prompt
from gateway.http.fields import Int32, SamplingFields, sampling_of


class NamedFunction(msgspec.Struct, kw_only=True):
    """By its name."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that is to be called."""

    function: NamedFunction
    type: str = "function"


class ChatBody(SamplingFields, kw_only=True):
    """A chat request."""

    messages: Messages
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    max_completion_tokens: Int32 | None = None
    max_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    echo: bool | None = None


def message_of(body: ChatBody, request_id: str) -> inference_pb2.ChatRequest:
    """The service's request.

    Raises:
        BatonError: INVALID_ARGUMENT for fields that are not served or that contradict each other.
    """
    if body.echo:
        raise invalid("echo: got true, expected false: a chat does not come back; drop it")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: got some without logprobs; set logprobs to true, or drop it")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = inference_pb2.ChatRequest(
        request_id=request_id,
        model=body.model or "",
        chat=chat_prompt(body.messages, body),
        sampling=sampling_of(body, max_tokens, (body.top_logprobs or 0) if body.logprobs else None),
        priority=body.priority or 0,
    )
    if body.parallel_tool_calls is not None:
        request.parallel_tool_calls = body.parallel_tool_calls
    if body.tool_choice is not None:
        request.tool_choice.CopyFrom(_tool_choice(body.tool_choice))
    return request


def _tool_choice(choice: str | NamedTool) -> inference_pb2.ToolChoice:
    if isinstance(choice, NamedTool):
        return inference_pb2.ToolChoice(function=choice.function.name)
    modes = {
        "none": inference_pb2.TOOL_MODE_NONE,
        "auto": inference_pb2.TOOL_MODE_AUTO,
        "required": inference_pb2.TOOL_MODE_REQUIRED,
    }
    if choice not in modes:
        raise invalid(f"tool_choice: got {choice[:64]!r}, expected auto, none, required or a function; change it")
    return inference_pb2.ToolChoice(mode=modes[choice])
