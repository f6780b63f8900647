"""A thousand requests: the parts of the time to the first token in each one's trace are what its client measured."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.types import FinishReason
from gateway.ttft import PARTS
from tests.fakes.gateway_stack import ANSWER, PROMPT, FakeCollector, eventually, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import first_token, prefill_done

NUM_REQUESTS, RATE_PER_S = 1000, 50
QUEUE_S, COMPUTE_S = 1.0, 2.0  # so that 2 % are more than this process, which is gateway and client, is busy at once

ONE_TOKEN = sampling_pb2.SamplingParams(max_tokens=1)


@pytest.fixture
def few_collections() -> Iterator[None]:
    """A process with torch in it takes 0.1 s for a collection of everything; a gateway's has none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


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


async def test_parts_add_up_to_what_clients_measure(model: Path, few_collections: None) -> None:
    collector = FakeCollector()
    measured_s: dict[str, float] = {}
    async with running_stack(model, otlp_endpoint=await collector.start()) as stack:
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
            measured_s[trace_id] = time.perf_counter() - start_s
            await stack.read_all(stream)

        await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS)))
        await eventually(
            lambda: sum(span.name == "gateway.request" for span in collector.spans) == NUM_REQUESTS, seconds=20
        )
    roots = [span for span in collector.spans if span.name == "gateway.request"]
    assert {span.trace_id.hex() for span in roots} == measured_s.keys()
    off = []
    for span in roots:
        values = {item.key: item.value.int_value for item in span.attributes}
        parts = {part: values[f"baton.ttft.{part}_us"] / 1e6 for part in PARTS}
        whole_s = measured_s[span.trace_id.hex()]
        if abs(sum(parts.values()) - whole_s) > 0.02 * whole_s:
            off.append((whole_s, parts))
        assert parts["queue"] >= QUEUE_S
        assert parts["compute"] >= COMPUTE_S - 0.005
    assert off == []
