"""What an answer must be, in the ways that clients say it: response_format, structured_outputs, guided_*."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.errors import invalid
from baton.rpc import sampling_pb2

Json = dict[str, Any]
Texts = Annotated[list[str], Meta(max_length=4096)]


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A named schema; `strict` changes nothing: answers always follow it."""

    name: str = ""
    schema: Json | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's, with vLLM's structural tags."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    format: Json | None = None  # of a structural tag


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's; exactly one is to be set."""

    json: str | Json | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Json | None = None


def structured_of(
    response_format: ResponseFormat | None, *others: StructuredOutputs | None
) -> sampling_pb2.StructuredOutput | None:
    """The one grammar of a request, or None.

    Raises:
        BatonError: INVALID_ARGUMENT for more than one, or for a response_format of an unknown type.
    """
    found = [grammar for other in others if other is not None for grammar in _grammars(other)]
    if response_format is not None and (of_format := _of_format(response_format)) is not None:
        found.append(of_format)
    if len(found) > 1:
        raise invalid(
            f"response_format: got {len(found)} grammars in response_format, structured_outputs and guided_* together, "
            "expected one; drop the others"
        )
    return found[0] if found else None


def _of_format(response_format: ResponseFormat) -> sampling_pb2.StructuredOutput | None:
    match response_format.type:
        case "text":
            return None
        case "json_object":
            return sampling_pb2.StructuredOutput(json_object=True)
        case "json_schema":
            named = response_format.json_schema
            if named is None or named.schema is None:
                raise invalid("response_format.json_schema: got no schema, expected one in it; add it")
            return sampling_pb2.StructuredOutput(json_schema=as_text(named.schema))
        case "structural_tag":
            tag = {"type": "structural_tag", "format": response_format.format or {}}
            return sampling_pb2.StructuredOutput(structural_tag=as_text(tag))
        case other:
            raise invalid(
                f"response_format.type: got {other[:64]!r}, expected text, json_object, json_schema or structural_tag; "
                "change it"
            )


def _grammars(outputs: StructuredOutputs) -> list[sampling_pb2.StructuredOutput]:
    found = []
    if outputs.json is not None:
        found.append(sampling_pb2.StructuredOutput(json_schema=as_text(outputs.json)))
    if outputs.regex is not None:
        found.append(sampling_pb2.StructuredOutput(regex=outputs.regex))
    if outputs.choice is not None:
        found.append(sampling_pb2.StructuredOutput(choice=sampling_pb2.Choice(texts=outputs.choice)))
    if outputs.grammar is not None:
        found.append(sampling_pb2.StructuredOutput(ebnf=outputs.grammar))
    if outputs.json_object:
        found.append(sampling_pb2.StructuredOutput(json_object=True))
    if outputs.structural_tag is not None:
        found.append(sampling_pb2.StructuredOutput(structural_tag=as_text(outputs.structural_tag)))
    return found


def as_text(value: Any) -> str:
    """JSON as compact text; a text is taken for JSON already."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
