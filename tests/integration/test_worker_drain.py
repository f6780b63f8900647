"""How worker services leave: nothing new is taken, what runs ends well, everybody is told, the exit code is 0."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.convert import grant_to_pb, sampling_to_pb
from baton.directory.base import WorkerRecord, worker_key, workers_key
from baton.errors import Reason
from baton.grpc_util.status import from_rpc_error
from baton.rpc import worker_pb2
from baton.types import Grant, KvEndpoint, KvLayout, SamplingParams, WorkerRef
from tests.fakes.redis_server import RedisServer
from tests.fakes.worker_process import WorkerProcess

PROMPT = (1, 2, 3)
SECOND_S = SamplingParams(max_tokens=50)  # of steps of 20 ms
ENDLESS = SamplingParams(max_tokens=100_000)
STEPS = ("--step-ms", "20")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


Launch = Callable[..., Awaitable[WorkerProcess]]


@pytest.fixture
async def launch(redis: RedisServer, tmp_path: Path) -> AsyncIterator[Launch]:
    workers = []

    async def start(module: str, *flags: str) -> WorkerProcess:
        workers.append(WorkerProcess(module, tmp_path, redis.url, *flags, core_flags=STEPS))
        return await workers[-1].wait_serving()

    yield start
    for worker in workers:
        await worker.close()


def record(redis: RedisServer) -> WorkerRecord | None:
    data = redis.client.get(worker_key("feedc0de", "w"))
    return msgspec.json.decode(data, type=WorkerRecord) if isinstance(data, bytes) else None


async def draining(redis: RedisServer) -> None:
    """Returns when the directory says so."""
    deadline_s = time.monotonic() + 5
    while not (found := record(redis)) or not found.draining:
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.01)


async def eventually_running(worker: WorkerProcess) -> None:
    deadline_s = time.monotonic() + 5
    while True:
        if (await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())).requests_running:
            return
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def local(worker: WorkerProcess, request_id: str, sampling: SamplingParams) -> Any:
    prompt = worker_pb2.LocalPrompt(prompt_token_ids=PROMPT, sampling=sampling_to_pb(sampling))
    return worker.decode.Decode(worker_pb2.DecodeRequest(request_id=request_id, epoch=1, local=prompt))


def reserve(worker: WorkerProcess, request_id: str) -> Any:
    request = worker_pb2.ReserveRequest(
        request_id=request_id, epoch=1, prompt_token_ids=PROMPT, sampling=sampling_to_pb(SECOND_S)
    )
    return worker.decode.Reserve(request)


def prefill(worker: WorkerProcess, request_id: str) -> Any:
    layout, endpoint = KvLayout(2, 2, 8, 16, "float32", "feedc0de"), KvEndpoint("nixl", b"nobody")
    deadline_ns = time.time_ns() + 10**10
    grant = Grant("g", request_id, WorkerRef("d", "1"), 1, 0, (5,), layout, endpoint, deadline_ns)
    return worker.prefill.Prefill(
        worker_pb2.PrefillRequest(
            request_id=request_id,
            epoch=1,
            prompt_token_ids=PROMPT,
            sampling=sampling_to_pb(SECOND_S),
            grant=grant_to_pb(grant),
        )
    )


async def rest(call: Any) -> list[worker_pb2.DecodeEvent]:
    return [event async for event in call]


async def assert_refused(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (call.read() if hasattr(call, "read") else call)
    error = from_rpc_error(raised.value, "w")
    assert (raised.value.code(), error.reason) == (grpc.StatusCode.UNAVAILABLE, Reason.DRAINING)
    assert error.retry_after_s
    assert "worker w is being drained" in error.message


async def health(worker: WorkerProcess) -> health_pb2.HealthCheckResponse.ServingStatus:
    return (await health_pb2_grpc.HealthStub(worker.channel).Check(health_pb2.HealthCheckRequest())).status


async def test_what_runs_ends_well_and_nothing_new_is_taken(launch: Launch, redis: RedisServer) -> None:
    worker = await launch("decode_service")
    call = local(worker, "r", SECOND_S)
    assert (await anext(aiter(call))).tokens.output_position == 0
    worker.process.terminate()
    await draining(redis)
    assert await health(worker) == health_pb2.HealthCheckResponse.NOT_SERVING
    await assert_refused(local(worker, "other", SECOND_S))
    await assert_refused(reserve(worker, "third"))
    events = await rest(call)
    assert events[-1].HasField("finished")
    assert sum(len(event.tokens.token_ids) for event in events) == SECOND_S.max_tokens - 1
    assert await worker.wait_exit() == 0
    assert redis.client.smembers(workers_key("feedc0de")) == set()
    assert record(redis) is None


async def test_a_prefill_worker_refuses_prompts(launch: Launch, redis: RedisServer) -> None:
    worker = await launch("prefill_service", "--drain-timeout-s", "60")
    hanging = prefill(worker, "hang")
    reading = asyncio.create_task(hanging.read())
    await eventually_running(worker)
    await worker.control.Drain(worker_pb2.DrainRequest())
    await draining(redis)
    await assert_refused(prefill(worker, "late"))
    # Whoever waits for this worker's writes to end still gets an answer.
    cancelled = await worker.prefill.CancelPrefill(worker_pb2.CancelPrefillRequest(request_id="hang", epoch=1))
    assert cancelled.fenced
    with pytest.raises(grpc.aio.AioRpcError):
        await reading
    assert await worker.wait_exit() == 0


async def test_callers_are_asked_to_have_a_request_moved(launch: Launch) -> None:
    worker = await launch("decode_service")
    calls = {name: local(worker, name, ENDLESS) for name in ("a", "b")}
    for call in calls.values():
        await anext(aiter(call))
    asked = await worker.control.MigrateOut(worker_pb2.MigrateOutRequest(request_ids=["b", "nobody"]))
    assert asked.requests_asked == 1
    while not (await anext(aiter(calls["b"]))).HasField("move_wanted"):
        pass
    assert (await worker.control.MigrateOut(worker_pb2.MigrateOutRequest())).requests_asked == 2
    while not (await anext(aiter(calls["a"]))).HasField("move_wanted"):
        pass
    assert (await anext(aiter(calls["a"]))).HasField("tokens")  # it goes on here
    for call in calls.values():
        call.cancel()


async def test_a_drain_asks_to_move_what_does_not_end_in_time(launch: Launch) -> None:
    worker = await launch("decode_service", "--drain-timeout-s", "0.2")
    call = local(worker, "r", ENDLESS)
    await anext(aiter(call))
    worker.process.terminate()
    while not (await anext(aiter(call))).HasField("move_wanted"):
        pass
    call.cancel()  # as a gateway that goes on elsewhere does, in the end
    assert await worker.wait_exit() == 0


async def test_a_call_drains_within_its_own_time(launch: Launch, redis: RedisServer) -> None:
    worker = await launch("decode_service", "--drain-timeout-s", "60")
    call = local(worker, "r", ENDLESS)
    await anext(aiter(call))
    answer = await worker.control.Drain(worker_pb2.DrainRequest(timeout_s=0.2))
    assert answer.requests_open == 1
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rest(call)
    assert from_rpc_error(raised.value, "w").reason is Reason.DRAINING
    assert await worker.wait_exit() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(launch: Launch, redis: RedisServer, second: signal.Signals) -> None:
    worker = await launch("decode_service", "--drain-timeout-s", "60")
    call = local(worker, "r", ENDLESS)
    await anext(aiter(call))
    worker.process.terminate()
    await draining(redis)
    worker.process.send_signal(second)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rest(call)
    assert from_rpc_error(raised.value, "w").reason is Reason.DRAINING
    assert await worker.wait_exit() == 0


async def test_a_core_that_dies_while_draining_is_a_failure(launch: Launch, redis: RedisServer) -> None:
    worker = await launch("decode_service", "--drain-timeout-s", "60")
    call = local(worker, "r", ENDLESS)
    await anext(aiter(call))
    worker.process.terminate()
    await draining(redis)
    os.kill(worker.core_pid(), signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rest(call)
    assert from_rpc_error(raised.value, "w").reason is Reason.ENGINE_DIED
    assert await worker.wait_exit() == 1
