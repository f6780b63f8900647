"""A thousand requests: the parts of the time to the first token in each one's trace are what is measured besides.

In a process of its own, without torch.
"""

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.rpc.inference_pb2 import GenerateResponse
from baton.types import FinishReason, Role
from gateway.metrics import RequestFigures
from gateway.request_trace import RequestTrace
from gateway.ttft import PARTS
from tests.fakes.gateway_stack import ANSWER, PROMPT, FakeCollector, eventually, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import first_token, prefill_done

ROOT = Path(__file__).parents[2]
NUM_REQUESTS, RATE_PER_S = 1000, 50
QUEUE_S, COMPUTE_S = 0.6, 1.4
ROLES = [("p0", Role.PREFILL), *((f"d{number}", Role.DECODE) for number in range(3))]  # nobody waits to be admitted
ONE_TOKEN = sampling_pb2.SamplingParams(max_tokens=1)


async def slow_prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
    """A worker whose queue is long and whose prompt takes long; it says so."""
    start_s = time.perf_counter()
    await asyncio.sleep(QUEUE_S)
    queue_s = time.perf_counter() - start_s
    await asyncio.sleep(COMPUTE_S)
    event = first_token(ANSWER[0], FinishReason.LENGTH)
    event.first_token.times.queue_us = round(queue_s * 1e6)
    event.first_token.times.compute_us = round((time.perf_counter() - start_s - queue_s) * 1e6)
    yield event
    yield prefill_done(worker_pb2.TransferStats())


class Told(NamedTuple):
    """Of one request."""

    client_s: float  # to the first token, as the client measured it
    metric_s: float  # as the gateway's metric has it, which has a clock of its own
    parts: dict[str, float]


def keep_metrics(ttft_s: dict[str, float]) -> None:
    """Has `ttft_s` filled with what the gateway's metric gets, by trace id."""
    seen, sends = RequestFigures.seen, RequestTrace.sends
    latest: list[RequestFigures] = []

    def noted(figures: RequestFigures, responses: Sequence[GenerateResponse]) -> Sequence[GenerateResponse]:
        latest[:] = [figures]
        return seen(figures, responses)

    def sent(trace: RequestTrace, responses: Sequence[GenerateResponse]) -> None:  # follows on `noted`, without a pause
        if (found := latest[0]._ttft_s) is not None:
            ttft_s.setdefault(trace.trace_id, found)
        sends(trace, responses)

    RequestFigures.seen, RequestTrace.sends = noted, sent  # type: ignore[method-assign, assignment]


async def measured() -> dict[str, Told]:
    """All requests by their traces."""
    collector = FakeCollector()
    client_s: dict[str, float] = {}
    metric_s: dict[str, float] = {}
    keep_metrics(metric_s)
    model = write_text_model(Path(tempfile.mkdtemp()))
    async with running_stack(model, ROLES, otlp_endpoint=await collector.start()) as stack:
        stack.prefill.script = slow_prefill

        async def ask(number: int) -> None:
            await asyncio.sleep(number / RATE_PER_S)
            start_s = time.perf_counter()
            tokens = inference_pb2.TokenPrompt(token_ids=[*PROMPT, 40 + number % 200])
            stream = stack.stream(deadline_s=30.0, tokens=tokens, sampling=ONE_TOKEN)
            response = await stream.read()
            trace_id = response.trace_id
            while not response.token_ids:
                response = await stream.read()
            client_s[trace_id] = time.perf_counter() - start_s
            await stack.read_all(stream)

        await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS)))
        await eventually(
            lambda: sum(span.name == "gateway.request" for span in collector.spans) == NUM_REQUESTS, seconds=20
        )
    found = {}
    for span in collector.spans:
        if span.name == "gateway.request":
            trace_id = span.trace_id.hex()
            values = {item.key: item.value.int_value for item in span.attributes}
            parts = {part: values[f"baton.ttft.{part}_us"] / 1e6 for part in PARTS}
            found[trace_id] = Told(client_s[trace_id], metric_s[trace_id], parts)
    return found


def test_parts_add_up_to_what_is_measured() -> None:
    """For each request to the gateway's metric; clients see the same, but where the machine stands still in between."""
    command = [sys.executable, "-m", "tests.integration.test_gateway_ttft"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    found = [Told(*told) for told in json.loads(done.stdout).values()]
    assert len(found) == NUM_REQUESTS
    for client_s, metric_s, parts in found:
        whole_s = sum(parts.values())
        assert whole_s == pytest.approx(metric_s, rel=0.02)
        assert whole_s <= client_s + 0.001
        assert parts["queue"] >= QUEUE_S
        assert parts["compute"] >= COMPUTE_S - 0.005
    assert statistics.median(sum(told.parts.values()) / told.client_s for told in found) > 0.98


if __name__ == "__main__":
    gc.disable()  # one process is the client, the gateway and all workers: its pauses are longer than any of theirs
    print(json.dumps(asyncio.run(measured())))
