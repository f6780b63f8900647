"""A thousand requests: the parts of the time to the first token in each one's trace are what its client measured.

In a process of its own, which has no torch in it.
"""

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.types import FinishReason
from gateway.ttft import PARTS
from tests.fakes.gateway_stack import ANSWER, PROMPT, FakeCollector, eventually, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import first_token, prefill_done

ROOT = Path(__file__).parents[2]
NUM_REQUESTS, RATE_PER_S = 1000, 50
QUEUE_S, COMPUTE_S = 2.0, 4.0  # so that 2 % are more than this process, which is gateway and client, is busy at once
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


async def measured() -> dict[str, tuple[float, dict[str, float]]]:
    """Of each trace: seconds to the first token as the client saw them, and the parts that the gateway told."""
    collector = FakeCollector()
    seen_s: dict[str, float] = {}
    model = write_text_model(Path(tempfile.mkdtemp()))
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
            seen_s[trace_id] = time.perf_counter() - start_s
            await stack.read_all(stream)

        await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS)))
        await eventually(
            lambda: sum(span.name == "gateway.request" for span in collector.spans) == NUM_REQUESTS, seconds=20
        )
    found = {}
    for span in collector.spans:
        if span.name == "gateway.request":
            values = {item.key: item.value.int_value for item in span.attributes}
            parts = {part: values[f"baton.ttft.{part}_us"] / 1e6 for part in PARTS}
            found[span.trace_id.hex()] = (seen_s[span.trace_id.hex()], parts)
    return found


def test_parts_add_up_to_what_clients_measure() -> None:
    command = [sys.executable, "-m", "tests.integration.test_gateway_ttft"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == NUM_REQUESTS
    off = []
    for whole_s, parts in found.values():
        if abs(sum(parts.values()) - whole_s) > 0.02 * whole_s:
            off.append((whole_s, parts))
        assert parts["queue"] >= QUEUE_S
        assert parts["compute"] >= COMPUTE_S - 0.005
    assert off == []


if __name__ == "__main__":
    gc.disable()  # one process is the client, the gateway and all workers: its pauses are longer than any of theirs
    print(json.dumps(asyncio.run(measured())))
