"""What can be said of a grammar without its compiler: size, nesting, JSON syntax. The gateway and every worker ask."""

import json
from typing import Any

from baton.structured import GrammarKind, StructuredOutput

MAX_GRAMMAR_BYTES = 64 << 10
MAX_CHOICES = 1000
# The compile time of nested arrays grows with the cube of their depth: 2 ms at 20, 0.13 s at 150, minutes at 5000.
MAX_JSON_DEPTH = 100

_JSON_KINDS = (GrammarKind.JSON_SCHEMA, GrammarKind.STRUCTURAL_TAG)


def problem_with_structured(structured: StructuredOutput) -> str | None:
    """Why a grammar is refused before anybody compiles it, or None."""
    field = f"structured.{structured.kind}"
    if structured.num_bytes > MAX_GRAMMAR_BYTES:
        return f"{field}: got {structured.num_bytes} bytes, expected at most {MAX_GRAMMAR_BYTES}; shorten it"
    if structured.kind is GrammarKind.CHOICE:
        return _problem_with_choices(field, structured.choices)
    if structured.kind is not GrammarKind.JSON_OBJECT and not structured.text:
        return f"{field}: got an empty text, expected a grammar; write one or drop structured"
    if structured.kind in _JSON_KINDS:
        return _problem_with_json(field, structured)
    return None


def _problem_with_choices(field: str, choices: tuple[str, ...]) -> str | None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        return f"{field}: got {len(choices)} texts, expected 1 to {MAX_CHOICES}; change their number"
    if "" in choices:
        return f"{field}: got an empty text at index {choices.index('')}, expected at least a character; drop it"
    return None


def _problem_with_json(field: str, structured: StructuredOutput) -> str | None:
    # Before parsing, because a parser's own limit ends in a RecursionError.
    depth = _json_depth(structured.text)
    if depth > MAX_JSON_DEPTH:
        return f"{field}: got brackets nested {depth} deep, expected at most {MAX_JSON_DEPTH}; flatten it with $ref"
    try:
        value: Any = json.loads(structured.text)
    except ValueError as error:
        return f"{field}: got no valid JSON ({error}); correct it"
    if not isinstance(value, dict | bool):
        return f"{field}: got a JSON {type(value).__name__}, expected an object; correct it"
    return None


def _json_depth(text: str) -> int:
    """The deepest nesting of brackets outside of strings; also for text that is no JSON."""
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest
