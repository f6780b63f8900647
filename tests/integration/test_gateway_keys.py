"""API keys over gRPC and HTTP: who is let in, what keys limit, and that no log ever shows a key or a prompt."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from baton.api_keys import ApiKey, hash_of, id_of, new_key, write_keys
from baton.cli.client import first_model
from baton.cli.with_key import with_key
from baton.rpc import inference_pb2, sampling_pb2
from tests.fakes.gateway_stack import ANSWER, PROMPT, Stack, ids_of, running_stack
from tests.fakes.text_model import write_text_model

SECRET_TEXT = "zebra velvet quartz"


class Keys:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self.good, self.small, self.slow = (new_key() for _ in range(3))
        write_keys(
            self.file,
            [
                ApiKey(name="good", id=id_of(self.good), sha256=hash_of(self.good)),
                ApiKey(name="small", id=id_of(self.small), sha256=hash_of(self.small), max_tokens=3),
                ApiKey(name="slow", id=id_of(self.slow), sha256=hash_of(self.slow), requests_per_minute=1),
            ],
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
async def stack(model: Path, keys: Keys) -> AsyncIterator[Stack]:
    async with running_stack(model, http_port=0, api_keys=keys.file) as running:
        yield running


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def reason_of(error: Any) -> str:
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    return info.reason


async def test_grpc_needs_a_key_for_everything_but_health(stack: Stack, keys: Keys) -> None:
    assert ids_of(await stack.generate(metadata=bearer(keys.good))) == ANSWER
    for metadata, reason in (([], "MISSING_API_KEY"), (bearer(new_key()), "INVALID_API_KEY")):
        error = await stack.error(metadata=metadata)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    stub = stack.stub
    for method, request in (
        (stub.ListModels, inference_pb2.ListModelsRequest()),
        (stub.Tokenize, inference_pb2.TokenizeRequest(text="a")),
        (stub.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[1])),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(request)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await method(request, metadata=bearer(keys.good))
    health = await health_pb2_grpc.HealthStub(stack.channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_http_answers_as_openai_does(stack: Stack, keys: Keys) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5}
    posts = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"]
    async with aiohttp.ClientSession() as http:
        for path in posts:
            async with http.post(stack.http_url + path, data=b"{" * 100_000) as response:  # refused before it is read
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (401, "missing_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/models/tiny", "/traces/" + "0" * 32):
            async with http.get(stack.http_url + path) as response:
                assert response.status == 401
        for path in ("/health", "/ready", "/version", "/openapi.json", "/", "/page.js"):
            async with http.get(stack.http_url + path) as response:
                assert response.status == 200
        wrong = {"authorization": f"Bearer {new_key()}"}
        async with http.post(f"{stack.http_url}/v1/completions", json=body, headers=wrong) as response:
            error = (await response.json())["error"]
            assert (response.status, error["type"], error["code"]) == (401, "invalid_request_error", "invalid_api_key")
        right = {"authorization": f"Bearer {keys.good}"}
        async with http.post(f"{stack.http_url}/v1/completions", json=body, headers=right) as response:
            assert response.status == 200
        async with http.get(f"{stack.http_url}/v1/models", headers=right) as response:
            assert response.status == 200
        slow = {"authorization": f"Bearer {keys.slow}"}
        codes = []
        for _ in range(2):
            async with http.post(f"{stack.http_url}/v1/completions", json=body, headers=slow) as response:
                codes.append((response.status, (await response.json()).get("error", {}).get("code")))
                retry_s = response.headers.get("retry-after", "0")
        assert codes == [(200, None), (429, "rate_limited")]
        assert 50 <= int(retry_s) <= 60


async def test_a_keys_answers_are_as_long_as_it_may_have(stack: Stack, keys: Keys) -> None:
    await stack.generate(metadata=bearer(keys.small))
    assert stack.decode.reserves[-1].sampling.max_tokens == 3
    error = await stack.error(metadata=bearer(keys.small), sampling=sampling_pb2.SamplingParams(max_tokens=4))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = await stack.error(metadata=bearer(keys.small), sampling=sampling_pb2.SamplingParams(min_tokens=4))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_that_was_refused_holds_nothing(stack: Stack, keys: Keys) -> None:
    await stack.error(metadata=bearer(new_key()))
    await stack.error(metadata=bearer(keys.good), model="another")
    access = stack.gateway.access
    assert all(usage.running == 0 for usage in access._usage.values())
    assert stack.gateway.admission.core.arrived == 0


async def test_no_log_shows_keys_or_prompts(stack: Stack, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    unknown = new_key()
    await stack.generate(metadata=bearer(keys.good), text=SECRET_TEXT)
    await stack.error(metadata=bearer(unknown), text=SECRET_TEXT)
    await stack.error(metadata=bearer(keys.good), text=SECRET_TEXT, model="another")
    await stack.workers["d0"].die()
    await stack.error(metadata=bearer(keys.good), text=SECRET_TEXT, deadline_s=1.0)
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {unknown}"}) as http:
        await http.post(f"{stack.http_url}/v1/completions", json={"prompt": SECRET_TEXT})
    assert len(caplog.records) > 10
    for secret in (keys.good, unknown, keys.good[-43:], *SECRET_TEXT.split()):
        assert secret not in caplog.text


async def test_the_command_line_takes_its_key_from_the_environment(stack: Stack, keys: Keys) -> None:
    def ask() -> str:
        address = f"127.0.0.1:{stack.port}"
        with grpc.insecure_channel(address) as channel:
            return first_model(with_key(channel, {"BATON_API_KEY": keys.good}), address)

    assert await asyncio.to_thread(ask) == "tiny"
