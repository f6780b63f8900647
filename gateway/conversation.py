"""A chat as the protocol carries it, checked and turned into what chat templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.chat_template import RESERVED_NAMES, RenderOptions

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 4096
MAX_DOCUMENTS = 256

Message = dict[str, Any]


def messages_of(chat: inference_pb2.ChatPrompt) -> list[Message]:
    """The messages by the names that transformers' `apply_chat_template` has for their parts.

    Raises:
        BatonError: INVALID_ARGUMENT naming the first message that no template could be given.
    """
    if not chat.messages:
        raise invalid("prompt.chat.messages: got an empty list, expected at least one message; add a user message")
    if len(chat.messages) > MAX_MESSAGES:
        raise invalid(
            f"prompt.chat.messages: got {len(chat.messages)}, expected at most {MAX_MESSAGES}; drop the oldest"
        )
    return [_message(f"prompt.chat.messages[{index}]", message) for index, message in enumerate(chat.messages)]


def options_of(chat: inference_pb2.ChatPrompt) -> RenderOptions:
    """What the template is told beside the messages; the tools have been checked before.

    Raises:
        BatonError: INVALID_ARGUMENT for documents or template_kwargs that are not what they should be.
    """
    if len(chat.documents) > MAX_DOCUMENTS:
        raise invalid(f"documents: got {len(chat.documents)}, expected at most {MAX_DOCUMENTS}; send fewer")
    documents = [json_object(f"documents[{index}]", text) for index, text in enumerate(chat.documents)]
    kwargs = json_object("chat_template_kwargs", chat.template_kwargs) if chat.template_kwargs else {}
    for name in kwargs:
        if name in RESERVED_NAMES:
            raise invalid(
                f"chat_template_kwargs: got {name!r}, which has a field of its own; use that, or another name"
            )
    continues = chat.continue_final_message
    generation_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not continues
    if continues and generation_prompt:
        raise invalid(
            "continue_final_message: got true together with add_generation_prompt, expected one of them; set the other "
            "to false"
        )
    return RenderOptions(
        tools=[_tool(tool) for tool in chat.tools] or None,
        documents=documents or None,
        kwargs=kwargs,
        add_generation_prompt=generation_prompt,
        continue_final_message=continues,
    )


def json_object(field: str, text: str) -> dict[str, Any]:
    """Raises:
    BatonError: INVALID_ARGUMENT when `text` is no JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{field}: got {text[:64]!r}, which is no JSON ({error}); correct it") from error
    if not isinstance(value, dict):
        raise invalid(f"{field}: got a JSON {type(value).__name__}, expected an object; correct it")
    return value


def _message(where: str, message: inference_pb2.ChatMessage) -> Message:
    if message.role not in ROLES:
        raise invalid(f"{where}.role: got {message.role[:64]!r}, expected one of {', '.join(ROLES)}; change the role")
    if message.role == "user" and not message.content:
        raise invalid(f"{where}.content: got an empty string, expected some text; fill it or drop the message")
    # Templates know "system" alone; "developer" is OpenAI's newer name for the same.
    parts: Message = {"role": "system" if message.role == "developer" else message.role, "content": message.content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value := getattr(message, name):
            parts[name] = value
    if message.tool_calls:
        if message.role != "assistant":
            raise invalid(f"{where}.tool_calls: got some of role {message.role!r}, expected assistant; drop them")
        parts["tool_calls"] = _tool_calls(where, message.tool_calls)
    return parts


def _tool_calls(where: str, calls: Sequence[inference_pb2.ToolCall]) -> list[Mapping[str, Any]]:
    """Templates write the arguments themselves, so they get them as values."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json_object(f"{where}.tool_calls[{index}].arguments", call.arguments or "{}"),
            },
        }
        for index, call in enumerate(calls)
    ]


def _tool(tool: inference_pb2.Tool) -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = json_object(f"tools.{tool.name}.parameters", tool.parameters)
    return {"type": "function", "function": function}
