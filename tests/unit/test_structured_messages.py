"""A grammar on its way from the command line through both protocols."""

from pathlib import Path

import pytest

from baton.cli.grammar_flags import structured_output
from baton.convert import sampling_from_pb, sampling_to_pb, structured_from_pb
from baton.errors import BatonError
from baton.structured import GrammarKind, StructuredOutput
from baton.types import SamplingParams
from engine.messages import AddLocal
from engine.wire import FrameBuffer, decode_commands, encode_frame

ALL = [
    StructuredOutput(GrammarKind.JSON_SCHEMA, '{"type": "integer"}'),
    StructuredOutput(GrammarKind.JSON_OBJECT),
    StructuredOutput(GrammarKind.REGEX, "é+"),
    StructuredOutput(GrammarKind.EBNF, 'root ::= "a"'),
    StructuredOutput(GrammarKind.CHOICE, choices=("a", "b")),
    StructuredOutput(GrammarKind.STRUCTURAL_TAG, "{}"),
]


@pytest.mark.parametrize("structured", ALL, ids=lambda structured: structured.kind.value)
def test_comes_back_as_it_was(structured: StructuredOutput) -> None:
    sampling = SamplingParams(structured=structured)
    assert sampling_from_pb(sampling_to_pb(sampling)) == sampling
    buffer = FrameBuffer()
    buffer.feed(encode_frame([AddLocal("a", 1, (1,), sampling)]))
    ((command,),) = (decode_commands(payload) for payload in buffer.frames())
    assert isinstance(command, AddLocal)
    assert command.sampling == sampling


def test_flags_of_generate(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "null"}')
    for given, expected in (
        ({"json_schema": str(file)}, StructuredOutput(GrammarKind.JSON_SCHEMA, '{"type": "null"}')),
        ({"json_schema": "{}"}, StructuredOutput(GrammarKind.JSON_SCHEMA, "{}")),
        ({"ebnf": 'root ::= "a"'}, StructuredOutput(GrammarKind.EBNF, 'root ::= "a"')),
        ({"regex": "a/b", "ebnf": None}, StructuredOutput(GrammarKind.REGEX, "a/b")),
        ({"json_object": True}, StructuredOutput(GrammarKind.JSON_OBJECT)),
        ({"choice": ["a", "b"]}, StructuredOutput(GrammarKind.CHOICE, choices=("a", "b"))),
    ):
        message = structured_output(**given)
        assert message is not None
        assert structured_from_pb(message) == expected
    assert structured_output(regex=None, choice=None) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [({"regex": "a", "ebnf": "b"}, "regex and ebnf"), ({"json_schema": "no-such-file.json"}, "cannot read")],
)
def test_flags_that_cannot_be_served(given: dict[str, str], words: str) -> None:
    with pytest.raises(BatonError, match=words):
        structured_output(**given)
