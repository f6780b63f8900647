"""Spans of prefill attempts that do not end well: they exist, and say so."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from baton.convert import sampling_to_pb
from baton.rpc import kv_pb2, worker_pb2
from baton.telemetry.tracing import Tracing, outgoing_metadata
from tests.fakes.redis_server import RedisServer
from tests.fakes.trace_receiver import TraceReceiver
from tests.fakes.worker_process import WorkerProcess
from tests.fakes.worker_stack import EPOCH, LONG, PROMPT


@pytest.fixture(scope="module")
def traces() -> Iterator[TraceReceiver]:
    receiver = TraceReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
async def worker(tmp_path: Path, traces: TraceReceiver) -> AsyncIterator[WorkerProcess]:
    redis = RedisServer(tmp_path)
    process = WorkerProcess("prefill_service", tmp_path, redis.url, "--otlp-endpoint", traces.address)
    yield await process.wait_serving()
    await process.close()
    redis.close()


def attributes(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in span.attributes}


async def spans_of(worker: WorkerProcess, traces: TraceReceiver, request_id: str, leave: bool) -> dict[str, Span]:
    """The spans of a Prefill call that the client leaves, or that ends by itself."""
    tracing = Tracing("test", None)
    with tracing.tracer.start_as_current_span("gateway.request") as span:
        request = worker_pb2.PrefillRequest(
            request_id=request_id,
            epoch=EPOCH,
            prompt_token_ids=PROMPT,
            sampling=sampling_to_pb(LONG),
            grant=kv_pb2.Grant(request_id=request_id, epoch=EPOCH),
        )
        call = worker.prefill.Prefill(request, metadata=outgoing_metadata())
        if leave:
            async with asyncio.timeout(10):
                while not (await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())).requests_running:
                    pass
            await asyncio.sleep(0.1)  # long enough to be told from nothing
            call.cancel()
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
    trace_id = format(span.get_span_context().trace_id, "032x")
    return await asyncio.to_thread(traces.wait_for, trace_id, {"prefill.queue", "prefill.compute"})


@pytest.mark.parametrize(
    ("request_id", "leave", "error"), [("hang", True, "cancelled"), ("fail", False, "invalid_argument")]
)
async def test_a_failed_attempt_is_seen(
    worker: WorkerProcess, traces: TraceReceiver, request_id: str, leave: bool, error: str
) -> None:
    compute = (await spans_of(worker, traces, request_id, leave))["prefill.compute"]
    assert attributes(compute)["error.type"] == error
    assert attributes(compute)["baton.worker"] == "w"
    assert (compute.status.code, compute.status.message) == (Status.STATUS_CODE_ERROR, error)
    if leave:
        assert compute.end_time_unix_nano - compute.start_time_unix_nano > 50e6  # from the call's start to its end
