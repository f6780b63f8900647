"""What a hand-over costs beside the copy: from prefill's last chunk done to decode's admission, on a local CPU stack.

Sixteen clients ask at once, again and again. Prompts fit into one chunk, so that each has one KV write, whose time is
the copy's. The parts come from the requests' spans: prefill until KvReady is sent, its way until decode has polled it
(without the copy), and decode's admission with the digest. Run on a machine that does nothing else:
python benchmarks/reliability/handover_control.py
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.config import StackOptions
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2, trace_store_pb2, trace_store_pb2_grpc
from benchmarks import record

_SPANS = {"prefill.compute", "kv.transfer", "decode.queue"}


class Parts(NamedTuple):
    """Of one hand-over, in ms."""

    total: float  # without the copy
    prefill: float
    way: float
    admission: float
    copy: float


async def ask_all(address: str, concurrency: int, rounds: int, prompt_tokens: int) -> list[str]:
    """The trace ids of all requests but the first round's."""

    async def ask(stub: inference_pb2_grpc.InferenceStub, number: int) -> str:
        ids = [1000 + (number * 131 + position * 7) % 9000 for position in range(prompt_tokens)]
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenPrompt(token_ids=ids),
            sampling=sampling_pb2.SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
        )
        first, *_ = [response async for response in stub.Generate(request, timeout=600)]
        return str(first.trace_id)

    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        traces: list[str] = []
        for number in range(rounds + 1):
            first = number * concurrency
            traces += await asyncio.gather(*(ask(stub, first + client) for client in range(concurrency)))
    return traces[concurrency:]


def spans_of(stub: trace_store_pb2_grpc.TraceStoreStub, trace_id: str) -> dict[str, Span]:
    """By name, when all wanted ones are there."""
    deadline = time.monotonic() + 30
    while True:
        reply = stub.GetTrace(trace_store_pb2.GetTraceRequest(trace_id=trace_id), timeout=10)
        data = TracesData.FromString(reply.otlp_traces_data)
        scopes = (scope for resource in data.resource_spans for scope in resource.scope_spans)
        spans = {span.name: span for scope in scopes for span in scope.spans}
        if spans.keys() >= _SPANS:
            return spans
        if time.monotonic() > deadline:
            raise SystemExit(f"error: trace {trace_id} has {sorted(spans)}, expected {sorted(_SPANS)}")
        time.sleep(0.1)


def parts_of(spans: dict[str, Span]) -> Parts | None:
    """None for a hand-over of several writes."""
    numbers = {pair.key: pair.value.int_value for pair in spans["kv.transfer"].attributes}
    if numbers["baton.kv.writes"] != 1:
        return None
    computed = spans["prefill.compute"].end_time_unix_nano
    moments = {event.name: event.time_unix_nano for event in spans["decode.queue"].events}
    sent, received = moments["kv ready sent"], moments["kv ready received"]
    admitted = spans["decode.queue"].end_time_unix_nano
    copy_ns = min(numbers["baton.kv.post_us"] * 1000, received - sent)
    parts_ns = sent - computed, received - sent - copy_ns, admitted - received, copy_ns
    return Parts(*(part / 1e6 for part in (sum(parts_ns[:3]), *parts_ns)))


def main() -> int:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    options = parser.parse_args()
    with LocalStack(StackOptions(port=0, max_model_len=2048)) as stack:
        asked = ask_all(stack.gateway_address, options.concurrency, options.rounds, options.prompt_tokens)
        trace_ids = asyncio.run(asked)
        with grpc.insecure_channel(stack.otlp_address) as channel:
            stub = trace_store_pb2_grpc.TraceStoreStub(channel)
            found = [parts_of(spans_of(stub, trace_id)) for trace_id in trace_ids]
    parts = [one for one in found if one is not None]
    lines = []
    for quantile, at in (("p50", 50), ("p99", 99)):
        figures = {name: _percentile([getattr(one, name) for one in parts], at) for name in Parts._fields}
        params = {"concurrency": options.concurrency, "prompt_tokens": options.prompt_tokens, "quantile": quantile}
        breakdown = {name: round(figures[name], 3) for name in Parts._fields[1:]}
        params |= {"samples": len(parts), **breakdown}
        lines.append(record.result("handover_control_ms", "smollm2-135m", params, figures["total"], "ms"))
        print(quantile, {name: round(value, 2) for name, value in figures.items()})
    print("written to", record.write("handover_control", lines))
    return 0


def _percentile(values: list[float], at: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[at - 1]


if __name__ == "__main__":
    sys.exit(main())
