"""Load on a stack with two workers of each role, and an act in the middle of it that no client may notice."""

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from tests.e2e.client import connect, greedy, token_request, worker_stats
from tests.e2e.conftest import OPTIONS

LEASE_S = 6.0
Response = inference_pb2.GenerateResponse


def stack_options(model: str, **more: object) -> StackOptions:
    """Two workers of each role, with short leases."""
    options = {**OPTIONS, "kv_cache_bytes": 256 << 20, "max_num_batched_tokens": 128, **more}
    return StackOptions(
        model=model,
        prefill=2,
        decode=2,
        num_threads=1,
        lease_s=LEASE_S,
        longest_write_s=0.5,
        clock_margin_s=0.5,
        **options,  # type: ignore[arg-type]
    )


def mixed_requests(first_id: int, prompt_tokens: int, max_tokens: int) -> list[inference_pb2.GenerateRequest]:
    """Eight different prompts: greedy, drawn with a seed, with logprobs, and with a stop string that is never found."""
    requests = []
    for index in range(8):
        ids = [first_id + (index * 131 + position * 7) % 900 for position in range(prompt_tokens)]
        sampling = greedy(max_tokens, ignore_eos=True)
        if index % 2:
            sampling = sampling_pb2.SamplingParams(
                temperature=0.8, seed=index, max_tokens=max_tokens, ignore_eos=True, frequency_penalty=0.2
            )
        if index % 4 > 1:
            sampling.logprobs = 1
            sampling.stop.append("\x00never\x00")
        requests.append(token_request(ids, sampling))
    return requests


def stream_all(
    stack: LocalStack, requests: list[inference_pb2.GenerateRequest], act_when: Callable[[int], bool], act: Callable
) -> list[list[Response]]:
    """All answers at once; `act` is called, once, when `act_when(tokens received so far)` holds."""
    answers: list[list[Response]] = [[] for _ in requests]

    async def client(stub: inference_pb2_grpc.InferenceStub, index: int) -> None:
        async for response in stub.Generate(requests[index], timeout=120):
            answers[index].append(response)

    async def watch() -> None:
        while not await asyncio.to_thread(act_when, sum(len(ids_of(answer)) for answer in answers)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.to_thread(act)

    async def run() -> None:
        async with connect(stack.gateway_address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            await asyncio.gather(watch(), *(client(stub, index) for index in range(len(requests))))

    asyncio.run(run())
    return answers


def ids_of(answer: list[Response]) -> list[int]:
    return [token_id for response in answer for token_id in response.token_ids]


def assert_same(got: list[list[Response]], expected: list[list[Response]]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ids_of(ours) == ids_of(theirs)
        assert "".join(one.text for one in ours) == "".join(one.text for one in theirs)
        assert ours[-1].finish_reason == theirs[-1].finish_reason
        assert ours[-1].usage.completion_tokens == theirs[-1].usage.completion_tokens
        mine, its = ([entry for one in answer for entry in one.logprobs] for answer in (ours, theirs))
        assert [entry.sampled.token_id for entry in mine] == [entry.sampled.token_id for entry in its]
        assert [entry.sampled.logprob for entry in mine] == pytest.approx(
            [entry.sampled.logprob for entry in its], abs=1e-3
        )


def restart(stack: LocalStack, worker: str) -> None:
    """Whole again, and known to the gateway, before the next test."""
    stack.restart(worker)
    deadline, prompts = time.monotonic() + 30, itertools.count(5000)
    while worker_stats(stack.worker_addresses[worker]).steps == 0:
        assert time.monotonic() < deadline, f"{worker} is not used again"
        # Of prompts that another worker knows, the new one would get none.
        stream_all(stack, mixed_requests(next(prompts), 20, 2)[:4], lambda tokens: True, lambda: None)


def busiest(stack: LocalStack, role: str) -> str:
    names = [name for name in stack.worker_addresses if name.startswith(role)]
    stats = {name: worker_stats(stack.worker_addresses[name]) for name in names}
    return max(names, key=lambda name: stats[name].requests_running + stats[name].requests_waiting)
