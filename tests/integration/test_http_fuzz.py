"""Whatever JSON comes in: an answer in the API's shape, no 5xx, no hang, and nothing is left behind."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.chat_body import ChatBody
from gateway.http.completion_body import CompletionBody
from gateway.http.responses_body import ResponsesBody
from gateway.http.tokens import DetokenizeBody, TokenizeBody
from gateway.text import TextCodec
from tests.fakes.gateway_stack import Stack, running_stack
from tests.fakes.http_client import TEXT, connect
from tests.fakes.scored_answers import score
from tests.fakes.text_model import write_text_model

NUM_EXAMPLES = int(os.environ.get("BATON_FUZZ_EXAMPLES", "150"))  # more by hand; CI has seconds for this
WITHIN_S = 20.0
BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# Values that are right for some field, so that requests get far.
GOOD: dict[str, Any] = {
    "prompt": "Hello",
    "messages": [{"role": "user", "content": "Hi"}],
    "input": "Hi",
    "tokens": [100, 101],
    "stop": ["x"],
    "tools": [TOOL],
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "structured_outputs": {"regex": "a+"},
    "tool_choice": "required",
    "text": {"format": {"type": "text"}},
    "logit_bias": {"5": 1.0},
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NEAR = st.sampled_from([0, 1, -1, 2, 20, 0.5, 2**31, 2**63, 1e300, True, "", "a", "\x00", [], {}, [[]], [0], ["a"]])
VALUES = NEAR | st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


class World:
    """A stack on an event loop of its own, which Hypothesis's plain functions can use."""

    def __init__(self, model: Path) -> None:
        self.runner = asyncio.Runner()
        self._exits = AsyncExitStack()
        self.stack: Stack = self.runner.run(self._exits.enter_async_context(running_stack(model, http_port=0)))
        score(self.stack, TextCodec(model).encode_bare(TEXT))
        self._client: httpx2.AsyncClient = self.runner.run(self._exits.enter_async_context(connect(self.stack)))

    def post(self, path: str, data: bytes) -> httpx2.Response:
        """Fails when no answer comes in time."""
        return self.runner.run(asyncio.wait_for(self._client.post(path, content=data), WITHIN_S))

    def close(self) -> None:
        self.runner.run(self.stack.quiet())
        self.runner.run(self._exits.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(write_text_model(tmp_path_factory.mktemp("model")))
    yield made
    made.close()  # asserts that no worker holds anything


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path = draw(st.sampled_from(sorted(BODIES)))
    kind = BODIES[path]
    required = {
        name: GOOD[name] for name in ("prompt", "messages", "input", "tokens") if name in kind.__struct_fields__
    }
    if path == "/tokenize":
        required.pop(draw(st.sampled_from(["prompt", "messages"])))
    names = draw(st.lists(st.sampled_from(kind.__struct_fields__), max_size=4, unique=True))
    fields = {name: draw(st.just(GOOD[name]) | VALUES if name in GOOD else VALUES) for name in names}
    return path, required | fields


def check(response: httpx2.Response, sent: object) -> None:
    assert response.status_code < 500, (sent, response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("\n\n")
        assert '"error":{' not in response.text, (sent, response.text)
    else:
        response.json()


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(requests())
def test_any_fields(world: World, request_: tuple[str, dict[str, Any]]) -> None:
    path, body = request_
    data = json.dumps(body, allow_nan=True).encode()
    check(world.post(path, data), (path, body))


@settings(max_examples=NUM_EXAMPLES // 3, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(world: World, path: str, data: bytes) -> None:
    response = world.post(path, data)
    check(response, (path, data))
    assert response.status_code == 400
