"""A real gateway over real worker services, with fake engine cores, and Redis: it is killed, or Redis is emptied."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.directory.reader import DirectoryReader
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.model_spec import load_model_spec
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2, worker_pb2
from tests.fakes.gateway_stack import eventually
from tests.fakes.redis_server import RedisServer
from tests.fakes.text_model import write_text_model
from tests.fakes.worker_process import WorkerProcess
from tests.fakes.worker_stack import settled

ROOT = Path(__file__).parents[2]
PROMPT = list(range(40, 60))


@dataclass
class Stack:
    """One process of each kind."""

    redis: RedisServer
    gateway: "subprocess.Popen[bytes]"
    stub: inference_pb2_grpc.InferenceStub
    prefill: WorkerProcess
    decode: WorkerProcess

    def generate(self, **fields: Any) -> Any:
        """The stream of one request, of 190 tokens by default."""
        fields.setdefault("sampling", sampling_pb2.SamplingParams(max_tokens=190, ignore_eos=True))
        tokens = inference_pb2.TokenPrompt(token_ids=PROMPT)
        return self.stub.Generate(inference_pb2.GenerateRequest(tokens=tokens, **fields), timeout=30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.close()


def spawn_gateway(model: Path, redis_url: str, port_file: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "gateway", "--model", str(model), "--port", "0", "--port-file", str(port_file)]
    return subprocess.Popen([*command, "--redis-url", redis_url], cwd=ROOT)


@pytest.fixture
async def stack(model: Path, redis: RedisServer, tmp_path: Path) -> AsyncIterator[Stack]:
    core_flags = ("--fingerprint", load_model_spec(model).fingerprint, "--step-ms", "20")
    workers = [
        WorkerProcess(f"{role}_service", tmp_path, redis.url, core_flags=core_flags, name=role)
        for role in ("prefill", "decode")
    ]
    port_file = tmp_path / "gateway.port"
    gateway = spawn_gateway(model, redis.url, port_file)
    try:
        for worker in workers:
            await worker.wait_serving()
        await eventually(port_file.exists, seconds=30)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port_file.read_text()}", options=CHANNEL_OPTIONS) as channel:
            yield Stack(redis, gateway, inference_pb2_grpc.InferenceStub(channel), *workers)
    finally:
        gateway.kill()
        gateway.wait()
        for worker in workers:
            await worker.close()


async def stats(worker: WorkerProcess) -> worker_pb2.WorkerStats:
    return await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())


async def read_all(stream: Any) -> list[inference_pb2.GenerateResponse]:
    return [response async for response in stream]


async def died(stack: Stack, stream: Any) -> None:
    """Kills the gateway; its client hears of it and its workers hold nothing any more."""
    stack.gateway.kill()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_all(stream)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    for worker in (stack.prefill, stack.decode):
        await settled(worker)
        assert (await stats(worker)).blocks_free == 100


async def test_a_gateway_is_killed_while_decode_streams(stack: Stack) -> None:
    stream = stack.generate()
    for _ in range(5):
        await anext(aiter(stream))
    assert (await stats(stack.decode)).requests_running == 1
    await died(stack, stream)


async def test_a_gateway_is_killed_while_prefill_computes(stack: Stack) -> None:
    stream = stack.generate(request_id="hang")  # gets no first token
    async with asyncio.timeout(10):
        while not (await stats(stack.prefill)).requests_running:
            pass
    assert (await stats(stack.decode)).grants_open == 1
    await died(stack, stream)


async def test_an_emptied_redis_does_not_stop_serving(stack: Stack, model: Path) -> None:
    short = sampling_pb2.SamplingParams(max_tokens=3, ignore_eos=True)
    reader = DirectoryReader(stack.redis.url, load_model_spec(model).fingerprint)
    await read_all(stack.generate(sampling=short))  # the gateway knows its workers
    for _ in range(3):
        stack.redis.client.flushall()
        assert await reader.workers() == []
        await asyncio.sleep(0.7)  # the gateway has looked since
        assert (await read_all(stack.generate(sampling=short)))[-1].usage.completion_tokens == 3
        async with asyncio.timeout(10):
            while len(await reader.workers()) < 2:
                pass
    await reader.close()
