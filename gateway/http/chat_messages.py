"""A chat's prompt in OpenAI's shape: messages, tools and what goes to the template."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.http.structured import as_text

Json = dict[str, Any]


class TextPart(msgspec.Struct, kw_only=True):
    """Part of a message."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], Meta(max_length=4096)]


class FunctionCall(msgspec.Struct, kw_only=True):
    """What an assistant has called."""

    name: str
    arguments: str | Json = "{}"


class ToolCallBody(msgspec.Struct, kw_only=True):
    """A call in an earlier turn."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class MessageBody(msgspec.Struct, kw_only=True):
    """One turn."""

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same; vLLM's newer name


class FunctionBody(msgspec.Struct, kw_only=True):
    """A tool's description; `strict` changes nothing: forced calls always follow the schema."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    """A tool."""

    function: FunctionBody
    type: str = "function"


Messages = Annotated[list[MessageBody], Meta(max_length=4096)]
Tools = Annotated[list[ToolBody], Meta(max_length=128)]
Documents = Annotated[list[Json], Meta(max_length=256)]


class PromptFields(Protocol):
    """What the bodies of chats and of /tokenize have in common."""

    tools: Tools | None
    documents: Documents | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: Json | None


def chat_prompt(messages: Sequence[MessageBody], body: PromptFields) -> inference_pb2.ChatPrompt:
    """Raises:
    BatonError: INVALID_ARGUMENT for parts that are no text, or a template of the client's own.
    """
    if body.chat_template is not None:
        raise invalid(
            "chat_template: got one, expected none: the model's own is used; send the prompt to /v1/completions"
        )
    chat = inference_pb2.ChatPrompt(
        messages=[_message(f"messages[{index}]", message) for index, message in enumerate(messages)],
        tools=[_tool(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())],
        documents=[as_text(document) for document in body.documents or ()],
        template_kwargs=as_text(body.chat_template_kwargs) if body.chat_template_kwargs else "",
        continue_final_message=bool(body.continue_final_message),
    )
    if body.add_generation_prompt is not None:
        chat.add_generation_prompt = body.add_generation_prompt
    return chat


def _message(where: str, message: MessageBody) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(
        role=message.role,
        content=text_of(f"{where}.content", message.content),
        name=message.name,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content or message.reasoning,
        tool_calls=[
            inference_pb2.ToolCall(id=call.id, name=call.function.name, arguments=as_text(call.function.arguments))
            for call in message.tool_calls or ()
        ],
    )


def text_of(where: str, content: str | Sequence[TextPart] | None) -> str:
    """Parts are joined by line breaks, as in vLLM.

    Raises:
        BatonError: INVALID_ARGUMENT for a part that is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
            raise invalid(
                f"{where}[{index}].type: got {part.type[:64]!r}, expected text, and a text with it; the model reads "
                "nothing else, drop the part"
            )
        texts.append(text)
    return "\n".join(texts)


def _tool(where: str, tool: ToolBody) -> inference_pb2.Tool:
    if tool.type != "function":
        raise invalid(f"{where}.type: got {tool.type[:64]!r}, expected function; drop the tool")
    function = tool.function
    parameters = "" if function.parameters is None else as_text(function.parameters)
    return inference_pb2.Tool(name=function.name, description=function.description, parameters=parameters)
