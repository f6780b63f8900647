"""JSON bodies become the protocol's messages, and answers name tokens as they should."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, sampling_pb2
from gateway.http.body import decode_body
from gateway.http.chat_body import ChatBody, message_of
from gateway.http.completion_body import CompletionBody, messages_of
from gateway.http.errors import BodyTooLarge, error_response
from gateway.http.fields import SamplingFields
from gateway.http.logprobs import CompletionLogprobsWriter, TokenNames, chat_logprobs
from gateway.text import TextCodec
from tests.fakes.text_model import write_text_model

DOC = Path(__file__).parents[2] / "docs" / "http_api.md"
Structured = sampling_pb2.StructuredOutput
SCHEMA = {"type": "object", "properties": {}}
SCHEMA_TEXT = '{"type":"object","properties":{}}'


def completion(**fields: Any) -> inference_pb2.GenerateRequest:
    body = decode_body(json.dumps({"prompt": "Hi"} | fields).encode(), CompletionBody)
    (message,) = messages_of(body, "id")
    return message


def chat(**fields: Any) -> inference_pb2.ChatRequest:
    messages = [{"role": "user", "content": "Hi"}]
    return message_of(decode_body(json.dumps({"messages": messages} | fields).encode(), ChatBody), "id")


VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "min_p": 0.125,
    "presence_penalty": -1.5,
    "frequency_penalty": 1.5,
    "repetition_penalty": 1.25,
    "logit_bias": {"5": -100, "6": 1.5},
    "seed": 2**63 - 1,
    "n": 2,
    "best_of": 3,
    "min_tokens": 3,
    "stop": ["a", "b"],
    "include_stop_str_in_output": True,
    "stop_token_ids": [3, 4],
    "ignore_eos": True,
    "bad_words": ["x"],
    "allowed_token_ids": [8, 9],
    "prompt_logprobs": 2,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "max_tokens": 11,
}


def test_sampling_fields_keep_their_values() -> None:
    for sampling in (completion(**VALUES).sampling, chat(**VALUES).sampling):
        for name, value in VALUES.items():
            expected = {int(key): bias for key, bias in value.items()} if isinstance(value, dict) else value
            got = getattr(sampling, name)
            if isinstance(value, dict):
                got = dict(got)
            assert (list(got) if isinstance(value, list) else got) == expected, name


def test_null_and_nothing_are_the_same() -> None:
    nulls = dict.fromkeys(SamplingFields.__struct_fields__)
    assert completion(**nulls) == completion()
    assert chat(**nulls) == chat()
    assert completion().sampling == sampling_pb2.SamplingParams(max_tokens=16)
    assert chat().sampling == sampling_pb2.SamplingParams()
    assert completion(stop="x").sampling.stop == ["x"]


def test_fields_of_the_request_itself() -> None:
    for message in (completion(priority=-3, model="tiny"), chat(priority=-3, model="tiny")):
        assert (message.priority, message.model, message.request_id) == (-3, "tiny", "id")
    assert chat(max_tokens=5, max_completion_tokens=6).sampling.max_tokens == 6
    assert chat(logprobs=True).sampling.logprobs == 0
    assert not chat(logprobs=False).sampling.HasField("logprobs")
    assert completion(echo=True).echo


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Structured(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            Structured(json_schema=SCHEMA_TEXT),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            Structured(structural_tag='{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
        ({"guided_json": SCHEMA}, Structured(json_schema=SCHEMA_TEXT)),
        ({"guided_json": "{}"}, Structured(json_schema="{}")),
        ({"guided_regex": "a+"}, Structured(regex="a+")),
        ({"guided_choice": ["a", "b"]}, Structured(choice=sampling_pb2.Choice(texts=["a", "b"]))),
        ({"guided_grammar": 'root ::= "a"'}, Structured(ebnf='root ::= "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, Structured(json_schema=SCHEMA_TEXT)),
        ({"structured_outputs": {"json_object": True}}, Structured(json_object=True)),
        ({"structured_outputs": {"regex": "a"}}, Structured(regex="a")),
        ({"structured_outputs": {"choice": ["a"]}}, Structured(choice=sampling_pb2.Choice(texts=["a"]))),
        ({"structured_outputs": {"grammar": "g"}}, Structured(ebnf="g")),
        ({"structured_outputs": {"structural_tag": "{}"}}, Structured(structural_tag="{}")),
    ],
)
def test_grammars_in_every_spelling(fields: dict[str, Any], expected: sampling_pb2.StructuredOutput | None) -> None:
    for message in (completion(**fields), chat(**fields)):
        assert message.sampling.HasField("structured") == (expected is not None)
        assert message.sampling.structured == (expected or Structured())


def test_a_chats_parts_become_the_protocols() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = chat(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c", "content": "3", "name": "f"},
        ],
        tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
        documents=[{"title": "t"}],
        chat_template_kwargs={"enable_thinking": False},
        add_generation_prompt=False,
        continue_final_message=True,
    )
    Pb = inference_pb2
    assert message.chat == Pb.ChatPrompt(
        messages=[
            Pb.ChatMessage(role="user", content="one\ntwo"),
            Pb.ChatMessage(
                role="assistant",
                tool_calls=[Pb.ToolCall(id="c", name="f", arguments='{"a":1}')],
                reasoning_content="hm",
            ),
            Pb.ChatMessage(role="tool", tool_call_id="c", content="3", name="f"),
        ],
        tools=[Pb.Tool(name="f", description="d", parameters=SCHEMA_TEXT)],
        documents=['{"title":"t"}'],
        template_kwargs='{"enable_thinking":false}',
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert message.tool_choice == Pb.ToolChoice(function="f")
    assert message.HasField("parallel_tool_calls")
    assert not message.parallel_tool_calls
    modes = {"none": Pb.TOOL_MODE_NONE, "auto": Pb.TOOL_MODE_AUTO, "required": Pb.TOOL_MODE_REQUIRED}
    for name, mode in modes.items():
        assert chat(tool_choice=name).tool_choice.mode == mode


@pytest.mark.parametrize(
    ("error", "status"),
    [(BatonError(code, "x: got"), None) for code in ErrorCode] + [(BodyTooLarge(1), 413)],
)
def test_every_error_has_a_status_that_openai_uses(error: BatonError, status: int | None) -> None:
    response = error_response(error)
    body = msgspec.json.decode(response.body)["error"]
    assert response.status_code in ({status} if status else {400, 401, 403, 404, 429, 499, 500, 503, 504})
    assert (response.status_code in (429, 503)) == ("retry-after" in response.headers)
    assert body["message"]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec(write_text_model(tmp_path_factory.mktemp("model")))


def entry(token_id: int, logprob: float) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(sampled=sampling_pb2.Logprob(token_id=token_id, logprob=logprob))


def test_bytes_of_a_cut_character_are_told(codec: TextCodec) -> None:
    ids = codec.encode_bare("é")
    if len(ids) == 1:
        ids = codec.encode_bare("ø")
    (first, *_) = chat_logprobs([entry(token_id, -1.0) for token_id in ids], TokenNames(codec, as_ids=False)).content
    assert first.token == "bytes:\\xc3"
    assert first.bytes == [0xC3]


def test_tokens_by_their_ids(codec: TextCodec) -> None:
    writer = CompletionLogprobsWriter(TokenNames(codec, as_ids=True))
    told = writer.write([17], [entry(17, float("-inf"))])
    assert told.tokens == ["token_id:17"]
    assert told.token_logprobs == [-9999.0]  # JSON has no infinity


def test_every_field_has_a_row_in_the_docs() -> None:
    table = DOC.read_text().split("## Fields", 1)[1].split("## Tool calls", 1)[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row[1])}
    refused = set(re.findall(r"`([a-z_]+)", DOC.read_text().split("## Requests", 1)[1].split("## Fields", 1)[0]))
    fields = {*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__}
    assert {name for name in fields if name not in named | refused | {"stream_options"}} == set()
    for row in rows:
        for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", row[4]):
            assert f"def {test}(" in (DOC.parents[1] / "tests" / file).read_text(), test
