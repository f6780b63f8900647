"""Tool calls and reasoning are found in an answer wherever its pieces are cut."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.parsing.base import AnswerParser, CallArguments, CallStart, Content, PlainText, Reasoning
from gateway.parsing.forced import NamedCall, RequiredCalls
from gateway.parsing.hermes import HermesParser
from gateway.parsing.llama3 import Llama3Parser
from gateway.parsing.mistral import MistralParser
from gateway.parsing.registry import tool_parser_for
from gateway.parsing.thinking import ThinkParser

Told = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, calls as name and arguments


def read(parser: AnswerParser, pieces: Sequence[str]) -> Told:
    """All that a parser tells; checks that calls come in order, each named before its arguments."""
    reasoning, content, calls = "", "", []
    for part in [part for piece in pieces for part in parser.push(piece)] + parser.finish():
        match part:
            case Content(text):
                assert text
                content += text
            case Reasoning(text):
                assert text
                reasoning += text
            case CallStart(index, call_id, name):
                assert (index, call_id != "") == (len(calls), True)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert (index, text != "") == (len(calls) - 1, True)
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return reasoning, content, calls


WEATHER = ("weather", '{"city": "Paris, \\"la belle\\" {1}", "days": [1, 2]}')
TIME = ("time", "{}")
CASES: list[tuple[Callable[[], AnswerParser], str, Told]] = [
    (PlainText, "Hello <tool_call>", ("", "Hello <tool_call>", [])),
    (HermesParser, "Just text < and <tool", ("", "Just text < and <tool", [])),
    (
        HermesParser,
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": WEATHER}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "time"}</tool_call>\n',
        ("", "Let me see.", [WEATHER, TIME]),
    ),
    (HermesParser, "<tool_call>\nnothing of the kind\n</tool_call> ok", ("", "nothing of the kind\n ok", [])),
    (HermesParser, '<tool_call>{"name": "time"}</tool_call>', ("", "", [TIME])),
    (HermesParser, '<tool_call>{"name": "time", "arguments": {"zone": "U', ("", "", [("time", '{"zone": "U')])),
    (HermesParser, '<tool_call>{"na', ("", '{"na', [])),
    (Llama3Parser, '{"name": "weather", "parameters": WEATHER}', ("", "", [WEATHER])),
    (
        Llama3Parser,
        '<|python_tag|>{"name": "time", "parameters": {}}; {"type": "f", "name": "weather", "parameters": WEATHER}',
        ("", "", [TIME, WEATHER]),
    ),
    (Llama3Parser, "  The time is {now}.", ("", "  The time is {now}.", [])),
    (Llama3Parser, '{"answer": 42} is it', ("", '{"answer": 42} is it', [])),
    (Llama3Parser, '{"name": 7, "parameters": {}}', ("", '{"name": 7, "parameters": {}}', [])),
    (
        MistralParser,
        '[TOOL_CALLS][{"name": "weather", "arguments": WEATHER}, {"name": "time", "arguments": null}]',
        ("", "", [WEATHER, TIME]),
    ),
    (MistralParser, "See: [TOOL_CALLS]time{}[TOOL_CALLS]weather[ARGS]WEATHER", ("", "See:", [TIME, WEATHER])),
    (MistralParser, "[TOOL_CALLS]time[CALL_ID]abc123def[ARGS]{}", ("", "", [TIME])),
    (MistralParser, "a [TOOL and b", ("", "a [TOOL and b", [])),
    (
        RequiredCalls,
        '[{"name": "weather", "parameters": WEATHER},{"name":"time","parameters":{}}]',
        ("", "", [WEATHER, TIME]),
    ),
    (lambda: NamedCall("weather"), "WEATHER", ("", "", [WEATHER])),
    (
        lambda: ThinkParser(PlainText(), False),
        "<think>\nHm.\nYes </b>\n</think>\n\nHello",
        ("Hm.\nYes </b>", "Hello", []),
    ),
    (lambda: ThinkParser(PlainText(), False), "Hello <think>", ("", "Hello <think>", [])),
    (lambda: ThinkParser(PlainText(), True), "Hm.</think>Hello\n", ("Hm.", "Hello\n", [])),
    (lambda: ThinkParser(PlainText(), True), "Cut sho", ("Cut sho", "", [])),
    (
        lambda: ThinkParser(HermesParser(), False),
        '<think>Hm.</think>\n<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        ("Hm.", "", [TIME]),
    ),
]


@pytest.mark.parametrize(("make", "text", "told"), CASES)
def test_cuts_do_not_matter(make: Callable[[], AnswerParser], text: str, told: Told) -> None:
    text = text.replace("WEATHER", WEATHER[1])
    assert read(make(), [text]) == told
    assert read(make(), list(text)) == told
    for cut in range(1, len(text)):
        assert read(make(), [text[:cut], text[cut:]]) == told


def test_arguments_come_as_they_are_written() -> None:
    parser = HermesParser()
    assert [type(part) for part in parser.push('<tool_call>{"name": "weather"')] == [CallStart]
    assert parser.push(', "arguments": {"city": "Pa') == [CallArguments(0, '{"city": "Pa')]
    assert parser.push("ris") == [CallArguments(0, "ris")]


def test_arguments_written_as_a_text_are_read() -> None:
    text = json.dumps({"name": "weather", "parameters": WEATHER[1]})
    assert read(Llama3Parser(), [text]) == ("", "", [WEATHER])


def test_ids_of_mistral_are_what_its_templates_take() -> None:
    (start, _) = MistralParser().push("[TOOL_CALLS]time{}")
    assert isinstance(start, CallStart)
    assert len(start.id) == 9
    assert start.id.isalnum()


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("auto", "… <tool_call> …", "hermes"),
        ("auto", "… [TOOL_CALLS] …", "mistral"),
        ("auto", "… <|python_tag|> …", "llama3_json"),
        ("auto", "nothing", None),
        ("auto", None, None),
        ("none", "<tool_call>", None),
        ("mistral", "<tool_call>", "mistral"),
    ],
)
def test_the_template_names_the_parser(name: str, template: str | None, expected: str | None) -> None:
    assert tool_parser_for(name, template) == expected


PIECES = st.lists(
    st.sampled_from(
        (
            *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<"),
            *("[", "]", "{", "}", '"', "\\", '"name"', '"arguments"', ":", ",", ";", " ", "\n", "f", "null", "1", "é"),
        )
    )
)


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_no_text_breaks_a_parser_and_cuts_never_matter(pieces: list[str]) -> None:
    text = "".join(pieces)
    for make in (HermesParser, Llama3Parser, MistralParser, RequiredCalls, lambda: ThinkParser(HermesParser(), False)):
        assert read(make(), pieces) == read(make(), [text]) == read(make(), list(text))
