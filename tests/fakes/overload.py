"""More requests than workers can serve, at random times, and what became of them."""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from baton.types import Role
from gateway.app import Gateway
from gateway.config import Limits
from tests.fakes.busy_worker import BusyDecode
from tests.fakes.gateway_stack import running_stack


class Load(NamedTuple):
    """What is sent, and to whom."""

    slots: int = 16  # of the one decode worker
    service_s: float = 0.4
    num_tokens: int = 5
    deadline_s: float = 1.5

    @property
    def capacity_rps(self) -> float:
        """What the worker can end in a second."""
        return self.slots / self.service_s


class Counts(NamedTuple):
    """Requests of one phase, by their ends."""

    seconds: float
    good: int  # whole, within the deadline
    late: int  # started, and not whole at the deadline
    other: Sequence[str]  # ends that should not be
    refusal_s: Sequence[float]  # from sending to the refusal, sorted

    @property
    def goodput_rps(self) -> float:
        """Requests a second that were of use."""
        return self.good / self.seconds

    def refusal_quantile_s(self, share: float) -> float:
        """Of the refused ones; 0 where there is none."""
        return self.refusal_s[int(share * (len(self.refusal_s) - 1))] if self.refusal_s else 0.0


async def phases(model: Path, load: Load, times: Sequence[tuple[float, float]]) -> list[Counts]:
    """One after the other: (requests a second as a factor of the capacity, seconds). One gateway for all of them."""
    busy = BusyDecode(load.slots, load.service_s, load.num_tokens)
    pair = (("p0", Role.PREFILL), ("d0", Role.DECODE))
    async with running_stack(model, pair, limits=Limits(poll_interval_s=0.5), replace_decode={"d0": busy}) as stack:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.port}", options=CHANNEL_OPTIONS) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            counts = [await _phase(stub, load, factor * load.capacity_rps, seconds) for factor, seconds in times]
        assert _queued(stack.gateway) == 0
    return counts


def _queued(gateway: Gateway) -> float:
    return gateway.metrics.registry.get_sample_value("baton_gateway_admission_queued") or 0.0


async def _phase(stub: inference_pb2_grpc.InferenceStub, load: Load, rate: float, seconds: float) -> Counts:
    draw = random.Random(1)
    clock = time.perf_counter
    start = due = clock()
    tasks = []
    while (due := due + draw.expovariate(rate)) < start + seconds:
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.create_task(_ask(stub, load)))
    ends = await asyncio.gather(*tasks)
    refusals = sorted(elapsed_s for end, elapsed_s in ends if end == "refused")
    names = [end for end, _ in ends]
    other = [name for name in names if name not in ("good", "late", "refused")]
    return Counts(seconds, names.count("good"), names.count("late"), other, refusals)


async def _ask(stub: inference_pb2_grpc.InferenceStub, load: Load) -> tuple[str, float]:
    prompt = inference_pb2.TokenPrompt(token_ids=range(40, 80))
    sampling = sampling_pb2.SamplingParams(max_tokens=load.num_tokens)
    sent = time.perf_counter()
    num_tokens = 0
    try:
        call = stub.Generate(
            inference_pb2.GenerateRequest(tokens=prompt, sampling=sampling),
            timeout=load.deadline_s,
            wait_for_ready=True,
        )
        async for response in call:
            num_tokens += len(response.token_ids)
    except grpc.aio.AioRpcError as error:
        elapsed_s = time.perf_counter() - sent
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "refused", elapsed_s
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return "late", elapsed_s
        return f"{error.code().name}: {error.details()}", elapsed_s
    return ("good" if num_tokens == load.num_tokens else f"{num_tokens} tokens"), time.perf_counter() - sent
