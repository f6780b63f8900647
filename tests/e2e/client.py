"""What the end-to-end tests say to a running stack: requests to the gateway, questions to the workers."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import grpc

from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2, worker_pb2, worker_pb2_grpc

MODEL = "smollm2-135m"


class Answer(NamedTuple):
    """One finished request."""

    token_ids: list[int]
    text: str
    usage: sampling_pb2.Usage
    finish_reason: int
    hand_over: inference_pb2.HandOver


def greedy(max_tokens: int, **more: object) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(temperature=0, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def token_request(
    ids: Sequence[int], sampling: sampling_pb2.SamplingParams, request_id: str = ""
) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id, model=MODEL, tokens=inference_pb2.TokenPrompt(token_ids=ids), sampling=sampling
    )


async def generate(channel: grpc.aio.Channel, request: inference_pb2.GenerateRequest, timeout_s: float = 200) -> Answer:
    token_ids, pieces, last = [], [], inference_pb2.GenerateResponse()
    async for response in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=timeout_s):
        token_ids += response.token_ids
        pieces.append(response.text)
        last = response
    return Answer(token_ids, "".join(pieces), last.usage, last.finish_reason, last.hand_over)


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def ask_together(address: str, requests: Sequence[inference_pb2.GenerateRequest], width: int = 64) -> list[Answer]:
    """Sends all requests, at most `width` at once, and gives their answers in order."""

    async def run() -> list[Answer]:
        gate = asyncio.Semaphore(width)

        async def one(request: inference_pb2.GenerateRequest) -> Answer:
            async with gate:
                return await generate(channel, request)

        async with connect(address) as channel:
            return await asyncio.gather(*(one(request) for request in requests))

    return asyncio.run(run())


def worker_stats(address: str, check: bool = False) -> worker_pb2.WorkerStats:
    with grpc.insecure_channel(address) as channel:
        stub = worker_pb2_grpc.WorkerControlStub(channel)
        if check:
            return stub.CheckIntegrity(worker_pb2.CheckIntegrityRequest(), timeout=30)
        return stub.GetWorkerStats(worker_pb2.GetWorkerStatsRequest(), timeout=30)


def assert_at_rest(addresses: Sequence[str], within_s: float = 10.0) -> None:
    """Every block of every worker is free or cached, and the accounts add up."""
    deadline = time.monotonic() + within_s
    for address in addresses:
        while True:
            stats = worker_stats(address, check=True)
            busy = stats.blocks_active + stats.blocks_quarantined + stats.requests_running + stats.requests_waiting
            if busy + stats.grants_open == 0:
                break
            assert time.monotonic() < deadline, f"{address} still holds blocks: {stats}"
            time.sleep(0.1)
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
