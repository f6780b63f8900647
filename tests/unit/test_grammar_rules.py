"""What is refused before a grammar is compiled, and what each token id stands for."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError
from baton.structured import GrammarKind, StructuredOutput
from baton.structured_rules import problem_with_structured
from engine.grammar.regex_rules import problem_with_regex
from engine.grammar.schema_rules import problem_with_schema
from engine.grammar.vocabulary import read_token_bytes
from tests.fakes.schemas import make_schemas
from tests.fakes.text_model import VOCAB_SIZE, byte_level_tokenizer, write_text_model

DEEP = '{"items":' * 100 + "{}" + "}" * 100


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        (StructuredOutput(GrammarKind.REGEX, "a" * 70000), "at most 65536"),
        (StructuredOutput(GrammarKind.REGEX, "é" * 40000), "80000 bytes"),
        (StructuredOutput(GrammarKind.EBNF), "empty text"),
        (StructuredOutput(GrammarKind.CHOICE), "1 to 1000"),
        (StructuredOutput(GrammarKind.CHOICE, choices=("a", "")), "index 1"),
        (StructuredOutput(GrammarKind.JSON_SCHEMA, '{"type":'), "no valid JSON"),
        (StructuredOutput(GrammarKind.JSON_SCHEMA, "[1]"), "JSON list"),
        (StructuredOutput(GrammarKind.JSON_SCHEMA, DEEP), "nested 101 deep"),
        (StructuredOutput(GrammarKind.STRUCTURAL_TAG, "tag"), "no valid JSON"),
    ],
)
def test_refused_at_sight(structured: StructuredOutput, words: str) -> None:
    assert words in (problem_with_structured(structured) or "")


def test_brackets_in_strings_do_not_nest() -> None:
    schema = json.dumps({"type": "string", "enum": ["[" * 200, '"\\' + "{" * 200]})
    assert problem_with_structured(StructuredOutput(GrammarKind.JSON_SCHEMA, schema)) is None
    assert problem_with_structured(StructuredOutput(GrammarKind.JSON_OBJECT)) is None


STRING: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": {"not": {}}}, "#/items: got not"),
        ({"$ref": "http://example.com/a"}, "$ref"),
        ({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {"type": "integer"}}}, "minimum beside $ref"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"type": "string", "enum": ["a", 1]}, "got 1 in enum"),
        ({"type": "integer", "const": True}, "got True in const"),
        ({"allOf": [STRING, {"minLength": 2}]}, "allOf with 2"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "write anyOf"),
        ({"minLength": 2}, "add the type"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "maxLength beside pattern"),
        ({"type": "string", "pattern": r"^\p{L}$"}, r"\p"),
        ({"type": "object", "properties": {"a": STRING}, "required": ["b"]}, "'b' in required"),
        ({"type": "object", "properties": {"a": STRING}, "additionalProperties": True}, "kept apart"),
        ({"type": "object", "additionalProperties": STRING, "minProperties": 2}, "may repeat"),
        ({"type": "object", "properties": {"a": {"properties": {}}}}, "#/properties/a: got properties without a type"),
    ],
)
def test_schemas_that_would_not_be_enforced(schema: dict[str, Any], words: str) -> None:
    assert words in (problem_with_schema(schema) or "")


def test_schemas_that_pass() -> None:
    served = [
        *make_schemas(200),
        {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "additionalProperties": False},
        {"anyOf": [STRING, {"type": "null"}], "default": None, "title": "pydantic's optional"},
        {"oneOf": [{"type": "integer"}, STRING, {"type": ["array", "null"]}]},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ]
    assert [problem_with_schema(schema) for schema in served] == [None] * len(served)


@pytest.mark.parametrize("pattern", [r"\p{L}", "a|^b", "a$b", r"\A", r"\z"])
def test_patterns_that_would_mean_something_else(pattern: str) -> None:
    assert problem_with_regex(pattern)


@pytest.mark.parametrize("pattern", [r"^\d+\.\w$", "[^a$]b", r"\^a\$b", r"\bword", "(ab|c){2}", r"[\]^]x"])
def test_patterns_that_are_the_compilers_business(pattern: str) -> None:
    assert problem_with_regex(pattern) is None


def test_bytes_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    table = read_token_bytes(tmp_path, VOCAB_SIZE)
    tokenizer = byte_level_tokenizer()
    for text in ("the quick brown fox", "你好世界 🎉\n", "naïve déjà vu"):
        assert b"".join(table[token] for token in tokenizer.encode(text).ids) == text.encode()
    assert {bytes([byte]) for byte in range(256)} <= set(table)
    assert table[tokenizer.token_to_id("<|im_end|>")] == b""
    assert table[tokenizer.token_to_id("<tool>")] == b"<tool>"
    assert len(table) == VOCAB_SIZE
    assert table[-1] == b""


def test_bytes_of_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    vocab = {"<s>": 0, "<0x0A>": 1, "\u2581the": 2, "é": 3}
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    added = [{"id": 0, "content": "<s>", "special": True}]
    tokenizer = {"model": {"vocab": vocab}, "decoder": decoder, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert read_token_bytes(tmp_path, 5) == [b"", b"\n", b" the", "é".encode(), b""]


def test_an_unknown_spelling_is_refused(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BatonError, match="WordPiece"):
        read_token_bytes(tmp_path, 1)
