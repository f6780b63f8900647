"""How worker services start and end: refusals, signals, a dying engine core, a lease that runs out, Redis down."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.convert import sampling_to_pb
from baton.directory.base import workers_key
from baton.errors import Reason
from baton.grpc_util.status import from_rpc_error
from baton.rpc import worker_pb2
from baton.types import SamplingParams
from tests.fakes.redis_server import RedisServer
from tests.fakes.worker_process import WorkerProcess

PROMPT = (1, 2, 3)
LONG = sampling_to_pb(SamplingParams(max_tokens=100_000))
LOCAL = worker_pb2.DecodeRequest(
    request_id="r", epoch=1, local=worker_pb2.LocalPrompt(prompt_token_ids=PROMPT, sampling=LONG)
)

Launch = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
async def launch(redis: RedisServer, tmp_path: Path) -> AsyncIterator[Launch]:
    workers = []

    def start(*flags: str, core_flags: tuple[str, ...] = (), redis_url: str = redis.url) -> WorkerProcess:
        workers.append(WorkerProcess("decode_service", tmp_path, redis_url, *flags, core_flags=core_flags))
        return workers[-1]

    yield start
    for worker in workers:
        await worker.close()


def registered(redis: RedisServer) -> set[bytes]:
    members = redis.client.smembers(workers_key("feedc0de"))
    assert isinstance(members, set)
    return members


async def health(worker: WorkerProcess) -> health_pb2.HealthCheckResponse.ServingStatus:
    assert worker.channel
    request = health_pb2.HealthCheckRequest(service="baton.v1.DecodeWorker")
    response = await health_pb2_grpc.HealthStub(worker.channel).Check(request)
    return response.status


async def read_all(call: Any) -> list[worker_pb2.DecodeEvent]:
    return [event async for event in call]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_worker_in_order(launch: Launch, redis: RedisServer, number: signal.Signals) -> None:
    worker = await launch("--drain-timeout-s", "0.1").wait_serving()
    assert await health(worker) == health_pb2.HealthCheckResponse.SERVING
    assert registered(redis) == {b"w"}
    core = psutil.Process(worker.core_pid())
    call = worker.decode.Decode(LOCAL)
    await anext(aiter(call))
    worker.process.send_signal(number)
    with pytest.raises(grpc.aio.AioRpcError) as raised:  # it does not end in time
        await read_all(call)
    assert from_rpc_error(raised.value, "w").reason is Reason.DRAINING  # the gateway goes on elsewhere
    assert await worker.wait_exit() == 0
    assert registered(redis) == set()
    assert not core.is_running()
    assert "Traceback" not in worker.log()


async def test_a_dead_core_fails_its_requests_and_ends_the_worker(launch: Launch, redis: RedisServer) -> None:
    worker = await launch().wait_serving()
    call = worker.decode.Decode(LOCAL)
    await anext(aiter(call))
    os.kill(worker.core_pid(), signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_all(call)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "engine core of worker w died (signal 9, SIGKILL)" in str(raised.value.details())
    assert await worker.wait_exit() == 1
    assert registered(redis) == set()


async def test_a_killed_worker_leaves_no_core_behind(launch: Launch) -> None:
    worker = await launch().wait_serving()
    core = psutil.Process(worker.core_pid())
    worker.process.kill()
    await worker.wait_exit()
    deadline_s = time.monotonic() + 5
    while core.is_running() and core.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


async def test_a_refused_start_tells_why(launch: Launch) -> None:
    worker = launch(core_flags=("--refuse", "the KV pool is too small; raise --kv-cache-bytes"))
    assert await worker.wait_exit() == 1
    assert worker.log().splitlines()[-1] == (
        "error: engine core of worker w did not start: it died (exit code 1): "
        "the KV pool is too small; raise --kv-cache-bytes"
    )
    assert not worker.port_file.exists()


async def test_a_taken_port_is_named(launch: Launch) -> None:
    first = await launch().wait_serving()
    port = first.address.rpartition(":")[2]
    second = launch("--port", port)
    assert await second.wait_exit() == 1
    assert "choose another --port" in second.log()


async def test_a_wildcard_host_needs_an_address(launch: Launch) -> None:
    worker = launch("--host", "0.0.0.0")
    assert await worker.wait_exit() == 1
    assert "add --advertise-address" in worker.log()


async def test_a_signal_while_the_model_loads_is_heeded(launch: Launch) -> None:
    worker = launch(core_flags=("--load-s", "60"))
    deadline_s = time.monotonic() + 20
    while not psutil.Process(worker.process.pid).children():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
    worker.process.terminate()
    assert await worker.wait_exit() == 0


async def test_a_lease_that_runs_out_is_told_to_a_late_decode_call(launch: Launch) -> None:
    worker = await launch("--lease-s", "0.1").wait_serving()
    request = worker_pb2.ReserveRequest(request_id="r", epoch=1, prompt_token_ids=PROMPT, sampling=LONG)
    grant = (await worker.decode.Reserve(request)).grant
    await asyncio.sleep(0.3)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await worker.decode.Decode(worker_pb2.DecodeRequest(request_id="r", epoch=1, grant_id=grant.grant_id)).read()
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert raised.value.details() == "the lease ran out"


async def test_an_integrity_problem_is_told(launch: Launch) -> None:
    worker = await launch(core_flags=("--problem", "block 3 is owned twice")).wait_serving()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await worker.control.CheckIntegrity(worker_pb2.CheckIntegrityRequest())
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "block 3 is owned twice" in str(raised.value.details())
    await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())


async def test_a_worker_serves_while_redis_is_down(launch: Launch) -> None:
    worker = await launch(redis_url="redis://127.0.0.1:9/0").wait_serving()
    call = worker.decode.Decode(LOCAL)
    assert (await call.read()).tokens.token_ids == [4]
    call.cancel()
    worker.process.terminate()
    assert await worker.wait_exit() == 0
    assert worker.log().count("Redis does not answer") == 1
