"""xgrammar behind the seam: every kind, the parser's messages, and answers drawn at random from each schema."""

import json
import random
from pathlib import Path

import jsonschema
import pytest
import torch

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec, load_model_spec
from baton.structured import GrammarKind, StructuredOutput
from engine.grammar.state import GrammarState
from engine.grammar.vocabulary import read_token_bytes
from engine.grammar.xgrammar_backend import XGrammarBackend
from tests.fakes.schemas import make_schemas

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call"],
        "tags": [
            {
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                "end": "</call>",
            }
        ],
        "stop_after_first": True,
    },
}


class Small:
    """The backend for SmolLM2's vocabulary, whose tokens include every byte."""

    def __init__(self, folder: Path) -> None:
        self.spec: ModelSpec = load_model_spec(folder)
        self.backend = XGrammarBackend(self.spec)
        self.bytes = read_token_bytes(folder, self.spec.vocab_size)
        self._token_of = {token: token_id for token_id, token in enumerate(self.bytes) if len(token) == 1}

    def state(self, kind: GrammarKind, text: str = "", choices: tuple[str, ...] = (), eos: bool = True) -> GrammarState:
        compiled = self.backend.compile(StructuredOutput(kind, text, choices))
        ends = self.spec.eos_token_ids
        return GrammarState(compiled, self.spec.vocab_size, ends if eos else (), () if eos else ends)

    def accepts(self, state: GrammarState, text: str) -> bool:
        """Byte by byte, up to a place where the answer may end."""
        for byte in text.encode():
            if state.over:
                return False
            state.accept(self._token_of[bytes([byte])])
        return not state.problem and (state.over or self.spec.eos_token_ids[0] in tokens_in(state))


def tokens_in(state: GrammarState) -> list[int]:
    octets = state.allowed.view(torch.uint8).unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1
    found: list[int] = octets.flatten().nonzero().flatten().tolist()
    return found


@pytest.fixture(scope="module")
def small(smollm2: Path) -> Small:
    return Small(smollm2)


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": 5}', "17", "4"),
        (GrammarKind.JSON_OBJECT, "", '{"a": [1, {"b": null}]}', "[1]"),
        (GrammarKind.REGEX, r"^\d{3}-[a-z]+$", "123-ab", "12-ab"),
        (GrammarKind.EBNF, 'root ::= "a" root "b" | "c"', "aacbb", "aacb"),
        (GrammarKind.STRUCTURAL_TAG, json.dumps(TAG), "Yes.\n<call>17</call>", "<call>x</call>"),
    ],
)
def test_each_kind(small: Small, kind: GrammarKind, text: str, good: str, bad: str) -> None:
    assert small.accepts(small.state(kind, text), good)
    assert not small.accepts(small.state(kind, text), bad)


def test_choices_are_taken_literally(small: Small) -> None:
    choices = ('say "hi"', "back\\slash", "two\nlines", "你好 🎉", "a | b", "\x01")
    for choice in choices:
        state = small.state(GrammarKind.CHOICE, choices=choices)
        assert small.accepts(state, choice)
        assert state.over
    assert not small.accepts(small.state(GrammarKind.CHOICE, choices=choices), "a ")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "objec"}', 'json_schema: Unsupported type "objec"'),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/$defs/no"}', "Cannot find field"),
        (GrammarKind.JSON_SCHEMA, '{"type": "array", "items": {"not": {}}}', "#/items: got not"),
        (GrammarKind.REGEX, "(ab", "position 4: The parenthesis is not closed"),
        (GrammarKind.REGEX, r"\p{L}", r"\p"),
        (GrammarKind.EBNF, 'root ::= "a" | b', 'column 16: Rule "b" is not defined'),
        (GrammarKind.STRUCTURAL_TAG, '{"type": "structural_tag"}', "must have a format field"),
        (
            GrammarKind.STRUCTURAL_TAG,
            '{"format": {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 3}}}',
            "write a pattern",
        ),
    ],
)
def test_bad_grammars_get_the_parsers_message(small: Small, kind: GrammarKind, text: str, words: str) -> None:
    with pytest.raises(BatonError) as caught:
        small.backend.compile(StructuredOutput(kind, text))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert words in caught.value.message
    assert "/project/" not in caught.value.message


def test_ends_only_where_the_answer_is_complete_and_the_request_allows_it(small: Small) -> None:
    (eos,) = small.spec.eos_token_ids
    state, endless = small.state(GrammarKind.REGEX, "a+"), small.state(GrammarKind.REGEX, "a+", eos=False)
    a = small.bytes.index(b"a")
    assert eos not in tokens_in(state)
    for each in (state, endless):
        each.accept(a)
    assert eos in tokens_in(state)
    assert eos not in tokens_in(endless)
    state.accept(eos)
    assert state.over
    assert state.problem is None
    assert not endless.over


def test_a_replayed_state_is_the_same_state(small: Small) -> None:
    schema = json.dumps(make_schemas(2)[1])
    walked = small.state(GrammarKind.JSON_SCHEMA, schema)
    output: list[int] = []
    for _ in range(12):
        output.append(random.Random(len(output)).choice(tokens_in(walked)))
        walked.accept(output[-1])
        replayed = small.state(GrammarKind.JSON_SCHEMA, schema)
        replayed.catch_up(output)
        assert torch.equal(replayed.allowed, walked.allowed)
        replayed.catch_up(output)  # nothing new
        assert torch.equal(replayed.allowed, walked.allowed)


def test_a_token_that_is_not_allowed_is_a_problem(small: Small) -> None:
    state = small.state(GrammarKind.REGEX, "ab")
    state.catch_up([small.bytes.index(b"a"), small.bytes.index(b"c")])
    assert "which was drawn at position 1" in (state.problem or "")


def test_random_answers_are_valid_without_a_model(small: Small) -> None:
    """A walk through allowed tokens finds what a model would not say often: escapes, control characters, limits."""
    for index, schema in enumerate(make_schemas(200)):
        rng = random.Random(index)
        state = small.state(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        output: list[int] = []
        while not state.over:
            output.append(rng.choice(tokens_in(state)))
            state.accept(output[-1])
            assert state.problem is None
            assert len(output) < 300
        jsonschema.validate(json.loads(b"".join(small.bytes[token] for token in output)), schema)
