"""The tools of a chat: what is accepted, and the grammar that an answer with forced calls is held to."""

import json
import re
from collections.abc import Sequence
from typing import Any

from baton.errors import invalid
from baton.rpc import inference_pb2, sampling_pb2
from gateway.conversation import json_object

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LOCAL_REFERENCE = re.compile(r"#/(\$defs|definitions)/(.+)")


def check_tools(tools: Sequence[inference_pb2.Tool]) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT naming the first tool that cannot be told to a model.
    """
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools: got {len(tools)}, expected at most {MAX_TOOLS}; send fewer")
    names = set()
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise invalid(
                f"tools[{index}].function.name: got {tool.name[:80]!r}, expected 1 to 64 letters, digits, '_', '.' or "
                "'-'; rename it"
            )
        if tool.name in names:
            raise invalid(f"tools[{index}].function.name: got {tool.name!r} twice; rename one of them")
        names.add(tool.name)
        if tool.parameters:
            json_object(f"tools[{index}].function.parameters", tool.parameters)


def required_calls(tools: Sequence[inference_pb2.Tool], parallel: bool) -> sampling_pb2.StructuredOutput:
    """A list of one or more calls; of exactly one unless `parallel`."""
    definitions: dict[str, Any] = {}
    items = []
    for index, tool in enumerate(tools):
        parameters = _hoisted(_parameters(tool), f"tool{index}_", definitions)
        items.append(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": items[0] if len(items) == 1 else {"anyOf": items},
    }
    if not parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return sampling_pb2.StructuredOutput(json_schema=json.dumps(schema))


def named_call(tools: Sequence[inference_pb2.Tool], name: str) -> sampling_pb2.StructuredOutput:
    """The arguments of the tool called `name`.

    Raises:
        BatonError: INVALID_ARGUMENT when there is none.
    """
    for tool in tools:
        if tool.name == name:
            return sampling_pb2.StructuredOutput(json_schema=json.dumps(_parameters(tool)))
    known = ", ".join(tool.name for tool in tools) or "none, since tools is empty"
    raise invalid(f"tool_choice: got function {name[:80]!r}, expected one of tools ({known}); change either")


def _parameters(tool: inference_pb2.Tool) -> dict[str, Any]:
    found = json_object(f"tools.{tool.name}.parameters", tool.parameters) if tool.parameters else {}
    return found or {"type": "object", "properties": {}, "additionalProperties": False}


def _hoisted(schema: Any, prefix: str, definitions: dict[str, Any]) -> Any:
    """`schema` with its local definitions moved into `definitions`, under names of their own."""

    def moved(part: Any) -> Any:
        if isinstance(part, list):
            return [moved(item) for item in part]
        if not isinstance(part, dict):
            return part
        result = {key: moved(value) for key, value in part.items()}
        reference = part.get("$ref")
        if isinstance(reference, str) and (match := _LOCAL_REFERENCE.fullmatch(reference)):
            result["$ref"] = f"#/$defs/{prefix}{match[2]}"
        return result

    own = dict(schema)
    for key in ("$defs", "definitions"):
        local = own.pop(key, None)
        if isinstance(local, dict):
            definitions.update({f"{prefix}{name}": moved(definition) for name, definition in local.items()})
    return moved(own)
