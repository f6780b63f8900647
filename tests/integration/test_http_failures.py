"""The HTTP API when something is wrong: with a request, with a worker, or with the client's patience."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from baton.errors import BatonError, ErrorCode
from baton.rpc import worker_pb2
from baton.types import Role
from gateway.config import Limits
from gateway.text import TextCodec
from tests.fakes.gateway_stack import Stack, eventually, running_stack
from tests.fakes.http_client import TEXT, USER, answers, connect
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import admitted, hang


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec(model)


@pytest.fixture
async def stack(model: Path, codec: TextCodec) -> AsyncIterator[Stack]:
    async with running_stack(model, max_message_mib=1, http_port=0) as running:
        answers(running, codec, TEXT)
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    async with connect(stack) as opened:
        yield opened


async def error(client: httpx2.AsyncClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    response = await client.post(path, json=body)
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.status_code, response.json()["error"]


async def test_without_a_decode_worker_it_is_alive_but_not_ready(model: Path) -> None:
    async with running_stack(model, roles=[("p0", Role.PREFILL)], http_port=0) as stack, connect(stack) as client:
        assert (await client.get("/health")).status_code == 200
        response = await client.get("/ready")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


BAD_REQUESTS: list[tuple[str, Any, int, str, str]] = [
    ("completions", {}, 400, "body", "missing required field `prompt`"),
    ("completions", {"prompt": "Hi", "model": "other"}, 404, "model", "expected one of: tiny"),
    ("completions", {"prompt": "Hi", "max_tokens": "many"}, 400, "max_tokens", "got `str`"),
    ("completions", {"prompt": "Hi", "max_tokens": 10**6}, 400, "max_tokens", "expected at most"),
    ("completions", {"prompt": "Hi", "max_tokens": 2**40}, 400, "max_tokens", "2147483647"),
    ("completions", {"prompt": "Hi", "temperature": -1}, 400, "temperature", "0 (greedy) to 100"),
    ("completions", {"prompt": "Hi", "n": 2, "temperature": 0}, 400, "n", "temperature 0"),
    ("completions", {"prompt": "Hi", "n": 2, "echo": True}, 400, "n", "together with echo"),
    ("completions", {"prompt": "Hi", "n": 3, "best_of": 2}, 400, "best_of", "3 (n)"),
    ("completions", {"prompt": "Hi", "n": -1}, 400, "n", "got -1"),
    ("completions", {"prompt": "Hi", "n": 10**9}, 400, "n", "<= 1024"),
    ("responses", {"input": "Hi", "n": 2}, 400, "n", "a response is one answer"),
    ("completions", {"prompt": "Hi", "use_beam_search": True}, 400, "use_beam_search", "not served"),
    ("completions", {"prompt": "Hi", "suffix": "x"}, 400, "suffix", "expected none"),
    ("completions", {"prompt": []}, 400, "prompt", "an empty list"),
    ("completions", {"prompt": ["a", 1]}, 400, "prompt", "mixed"),
    ("completions", {"prompt": ""}, 400, "prompt.text", "empty string"),
    ("completions", {"prompt": "Hi", "logprobs": 21}, 400, "logprobs", "0 to 20"),
    ("completions", {"prompt": "Hi", "stream_options": {}}, 400, "stream_options", "without stream"),
    ("completions", {"prompt": "Hi", "guided_regex": "a", "guided_json": {}}, 400, "response_format", "got 2"),
    ("completions", {"prompt": "Hi", "response_format": {"type": "xml"}}, 400, "response_format.type", "'xml'"),
    ("chat/completions", {"messages": []}, 400, "messages", "an empty list"),
    ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role", "'robot'"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0].type",
        "image_url",
    ),
    ("chat/completions", {"messages": [USER], "top_logprobs": 2}, 400, "top_logprobs", "without logprobs"),
    ("chat/completions", {"messages": [USER], "tool_choice": "all"}, 400, "tool_choice", "'all'"),
    ("chat/completions", {"messages": [USER], "chat_template": "x"}, 400, "chat_template", "the model's own"),
    ("chat/completions", {"messages": [USER], "echo": True}, 400, "echo", "does not come back"),
]


async def test_bad_requests_are_refused_in_openais_shape(stack: Stack, client: httpx2.AsyncClient) -> None:
    for path, body, status, param, words in BAD_REQUESTS:
        for stream in (False, True) if "stream_options" not in body else (False,):
            got, told = await error(client, f"/v1/{path}", body | {"stream": stream})
            assert (got, told["param"], told["type"]) == (status, param, "invalid_request_error"), (body, told)
            assert words in told["message"]
    assert not stack.decode.reserves


async def test_what_is_no_json_is_refused(client: httpx2.AsyncClient) -> None:
    for data in (b"", b"{", b'{"prompt": "\\ud800"}', b"\xff", b'{"prompt": ' + b"[" * 50_000):
        response = await client.post("/v1/completions", content=data)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error"), data[:20]


async def test_a_body_above_the_limit_is_refused(client: httpx2.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * (1 << 16)

    assert (await client.post("/v1/completions", content=b"x" * (1 << 21))).status_code == 413
    assert (await client.post("/v1/completions", content=pieces())).status_code == 413


async def test_paths_and_methods_that_are_not_there(client: httpx2.AsyncClient) -> None:
    for path, status in (("/nothing", 404), ("/v1/completions", 405)):
        response = await client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, "not_found")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status"),
    [(ErrorCode.RESOURCE_EXHAUSTED, 429), (ErrorCode.UNAVAILABLE, 503), (ErrorCode.INTERNAL, 500)],
)
async def test_failures_before_the_first_token_have_a_status(
    model: Path, code: ErrorCode, status: int, stream: bool
) -> None:
    limits = Limits(poll_interval_s=0.05, max_reserve_wait_s=0.1)
    async with running_stack(model, limits=limits, max_attempts=1, http_port=0) as stack, connect(stack) as client:
        stack.decode.refusals = [BatonError(code, "no", retry_after_s=2.5 if status in (429, 503) else None)] * 50
        response = await client.post("/v1/completions", json={"prompt": "Hello", "stream": stream})
        assert response.status_code == status, response.text
        assert ("retry-after" in response.headers) == (status != 500)


async def test_a_failure_after_the_first_token_is_an_event(model: Path, codec: TextCodec) -> None:
    heard = asyncio.Event()

    async def broken(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        await heard.wait()
        raise BatonError(ErrorCode.INTERNAL, "the step failed")

    async with running_stack(model, max_attempts=1, http_port=0) as stack, connect(stack) as client:
        answers(stack, codec, TEXT)
        stack.decode.script = broken
        body = {"model": "tiny", "stream": True, "prompt": "Hello"}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            await anext(lines)
            heard.set()
            *_, last, done = [line.removeprefix("data: ") async for line in lines if line]
        assert done == "[DONE]"
        last = json.loads(last)
        assert last["error"]["type"] == "server_error"
        assert "the step failed" in last["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_workers(stack: Stack, client: httpx2.AsyncClient, stream: bool) -> None:
    stack.decode.script = hang
    body = {"prompt": "Hello", "stream": stream}
    if stream:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_bytes())
            assert stack.decode.open_streams == 1
    else:
        call = asyncio.create_task(client.post("/v1/completions", json=body))
        await eventually(lambda: stack.decode.open_streams)
        call.cancel()
    await stack.quiet()


async def test_a_client_that_leaves_before_the_first_token_of_a_stream_frees_the_workers(
    stack: Stack, client: httpx2.AsyncClient
) -> None:
    stack.prefill.script = stack.decode.script = hang
    call = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": [USER], "stream": True}))
    await eventually(lambda: stack.prefill.open_streams)
    call.cancel()
    await stack.quiet()


async def test_a_deadline_ends_the_request(stack: Stack, client: httpx2.AsyncClient) -> None:
    stack.decode.script = hang
    headers = {"x-request-timeout-s": "0.3"}
    response = await client.post("/v1/completions", json={"prompt": "Hello"}, headers=headers)
    assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
    await stack.quiet()
    body = {"prompt": "Hello", "stream": True}
    response = await client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    assert '"timeout_error"' in response.text
    await stack.quiet()
    bad = await client.post("/v1/completions", json=body, headers={"x-request-timeout-s": "soon"})
    assert bad.status_code == 400
