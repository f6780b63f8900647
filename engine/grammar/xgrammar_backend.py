"""Grammars by xgrammar (Dong et al., "XGrammar: flexible and efficient structured generation", MLSys 2025)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xgrammar
from torch import Tensor

from baton.errors import invalid
from baton.model_spec import ModelSpec
from baton.structured import GrammarKind, StructuredOutput
from engine.grammar.base import CompiledGrammar, GrammarBackend, GrammarMatcher
from engine.grammar.regex_rules import problem_with_regex
from engine.grammar.schema_rules import problem_with_schema
from engine.grammar.vocabulary import read_token_bytes

_MAX_MESSAGE_CHARS = 500
# What precedes the parser's own words: a time, a source line, and the check that failed.
_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?")
_ANY_OBJECT = json.dumps({"type": "object", "additionalProperties": True})


class _Matcher(GrammarMatcher):
    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        return self._matcher.accept_token(token_id)

    @property
    def complete(self) -> bool:
        return self._matcher.is_completed()

    def fill(self, row: Tensor) -> None:
        self._matcher.fill_next_token_bitmask(row.unsqueeze(0))


class _Compiled(CompiledGrammar):
    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    @property
    def num_bytes(self) -> int:
        return self._compiled.memory_size_bytes

    def matcher(self) -> GrammarMatcher:
        return _Matcher(xgrammar.GrammarMatcher(self._compiled))


class XGrammarBackend(GrammarBackend):
    """Compiling releases the interpreter lock."""

    def __init__(self, spec: ModelSpec) -> None:
        """Raises BatonError as `read_token_bytes`."""
        tokens = read_token_bytes(Path(spec.path), spec.vocab_size)
        self._compiler = _compiler(spec, tokens)
        # JSON on one line has no control character. xgrammar lets them into strings of limited length (0.2.9).
        self._json_compiler = _compiler(spec, [b"" if token and min(token) < 0x20 else token for token in tokens])

    def compile(self, structured: StructuredOutput) -> CompiledGrammar:
        field = f"structured.{structured.kind}"
        problem = _unenforced(structured)
        if problem:
            raise invalid(f"{field}: {problem}")
        try:
            return _Compiled(self._compile(structured))
        except RuntimeError as error:  # of all kinds that it raises, the base
            message = _PREFIX.sub("", str(error)).strip()[:_MAX_MESSAGE_CHARS]
            raise invalid(f"{field}: {message}; correct it") from error

    def _compile(self, structured: StructuredOutput) -> xgrammar.CompiledGrammar:
        compiler, text = self._compiler, structured.text
        match structured.kind:
            # On one line. Free whitespace has no end, and small models at temperature 1 do not find one.
            case GrammarKind.JSON_SCHEMA:
                return self._json_compiler.compile_json_schema(text, any_whitespace=False)
            case GrammarKind.JSON_OBJECT:
                return self._json_compiler.compile_json_schema(_ANY_OBJECT, any_whitespace=False)
            case GrammarKind.REGEX:
                return compiler.compile_regex(text)
            case GrammarKind.EBNF:
                return compiler.compile_grammar(text)
            case GrammarKind.CHOICE:  # quoted as in JSON
                texts = (json.dumps(choice, ensure_ascii=False) for choice in structured.choices)
                return compiler.compile_grammar(f"root ::= {' | '.join(texts)}")
            case GrammarKind.STRUCTURAL_TAG:
                return compiler.compile_structural_tag(text)


def _compiler(spec: ModelSpec, tokens: list[bytes]) -> xgrammar.GrammarCompiler:
    """Without a cache, since `engine.grammar.compiler` has one."""
    tokenizer = xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, vocab_size=spec.vocab_size, stop_token_ids=list(spec.eos_token_ids)
    )
    return xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)


def _unenforced(structured: StructuredOutput) -> str | None:
    match structured.kind:
        case GrammarKind.REGEX:
            return problem_with_regex(structured.text)
        case GrammarKind.JSON_SCHEMA:
            return problem_with_schema(json.loads(structured.text))
        case GrammarKind.STRUCTURAL_TAG:
            return next(filter(None, map(_problem_within_tag, _schemas(json.loads(structured.text)))), None)
    return None


def _problem_within_tag(schema: Any) -> str | None:
    """Beside free text control characters stay possible, so there must be no string that xgrammar lets them into."""
    if '"minLength": ' in json.dumps(schema) or '"maxLength": ' in json.dumps(schema):
        return "got minLength or maxLength within a tag, where they would let control characters in; write a pattern"
    return problem_with_schema(schema)


def _schemas(tag: Any) -> Iterator[Any]:
    """The JSON Schemas within a structural tag."""
    if isinstance(tag, list):
        for item in tag:
            yield from _schemas(item)
    elif isinstance(tag, dict):
        for key, value in tag.items():
            if key == "json_schema":
                yield value
            else:
                yield from _schemas(value)
