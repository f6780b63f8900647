"""Parsers by name, and which one a chat template asks for."""

from collections.abc import Callable

from gateway.parsing.base import AnswerParser
from gateway.parsing.hermes import HermesParser
from gateway.parsing.llama3 import Llama3Parser
from gateway.parsing.mistral import MistralParser

TOOL_PARSERS: dict[str, Callable[[], AnswerParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "mistral": MistralParser,
}
AUTO, NONE = "auto", "none"
TOOL_PARSER_NAMES = (AUTO, NONE, *TOOL_PARSERS)
# Whether the model leaves the opening tag out.
REASONING_PARSERS = {"qwen3": False, "deepseek_r1": True}
REASONING_PARSER_NAMES = (NONE, *REASONING_PARSERS)

# In this order: what a template writes for the calls of earlier turns.
_MARKS = (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3_json"))


def tool_parser_for(name: str, chat_template: str | None) -> str | None:
    """The parser called `name`; for "auto" the one of the chat template's format; None: no calls are looked for."""
    if name != AUTO:
        return None if name == NONE else name
    return next((parser for mark, parser in _MARKS if mark in (chat_template or "")), None)
