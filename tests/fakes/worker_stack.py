"""One worker of each kind, and short names for calling them."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from baton.convert import sampling_to_pb
from baton.rpc import kv_pb2, worker_pb2
from baton.types import SamplingParams
from tests.fakes.redis_server import RedisServer
from tests.fakes.trace_receiver import TraceReceiver
from tests.fakes.worker_process import WorkerProcess

PROMPT = tuple(range(100, 140))
LONG = SamplingParams(max_tokens=100_000)
EPOCH = 3


@dataclass
class Stack:
    """One worker of each kind, with Redis and a trace receiver."""

    redis: RedisServer
    traces: TraceReceiver
    p: WorkerProcess
    d: WorkerProcess
    a: WorkerProcess

    @property
    def workers(self) -> list[WorkerProcess]:
        return [self.p, self.d, self.a]


async def settled(worker: WorkerProcess) -> None:
    """Returns when the engine core holds nothing any more."""
    deadline_s = time.monotonic() + 5
    while True:
        stats = await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())
        if stats.requests_running == stats.grants_open == 0:
            return
        assert time.monotonic() < deadline_s, stats
        await asyncio.sleep(0.02)


async def reserve(stack: Stack, request_id: str, sampling: SamplingParams = LONG) -> kv_pb2.Grant:
    request = worker_pb2.ReserveRequest(
        request_id=request_id, epoch=EPOCH, prompt_token_ids=PROMPT, sampling=sampling_to_pb(sampling)
    )
    response = await stack.d.decode.Reserve(request)
    assert response.cached_prompt_tokens == 16
    return response.grant


def prefill(stack: Stack, grant: kv_pb2.Grant, sampling: SamplingParams = LONG, **changes: Any) -> Any:
    request = worker_pb2.PrefillRequest(
        request_id=grant.request_id,
        epoch=EPOCH,
        prompt_token_ids=PROMPT,
        sampling=sampling_to_pb(sampling),
        grant=grant,
    )
    for field, value in changes.items():
        setattr(request, field, value)
    return stack.p.prefill.Prefill(request)


def decode(stack: Stack, grant: kv_pb2.Grant, epoch: int = EPOCH) -> Any:
    request = worker_pb2.DecodeRequest(request_id=grant.request_id, epoch=epoch, grant_id=grant.grant_id)
    return stack.d.decode.Decode(request)


def decode_local(worker: WorkerProcess, request_id: str, sampling: SamplingParams, **options: Any) -> Any:
    local = worker_pb2.LocalPrompt(prompt_token_ids=PROMPT, sampling=sampling_to_pb(sampling))
    request = worker_pb2.DecodeRequest(request_id=request_id, epoch=EPOCH, local=local)
    return worker.decode.Decode(request, **options)


async def release(stack: Stack, grant: kv_pb2.Grant, epoch: int = EPOCH) -> None:
    await stack.d.decode.Release(worker_pb2.ReleaseRequest(grant_id=grant.grant_id, epoch=epoch, fenced=True))


async def collect(call: Any) -> list[Any]:
    return [event async for event in call]
