"""One trace a request, across gateway, prefill and decode, with the spans that the design names."""

import asyncio
import time

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from baton.local.stack import LocalStack
from baton.rpc import inference_pb2_grpc, trace_store_pb2, trace_store_pb2_grpc
from tests.e2e.client import connect, greedy, token_request

APART = {
    "gateway.request",
    "gateway.tokenize",
    "gateway.admit",
    "gateway.route",
    "decode.reserve",
    "prefill.queue",
    "prefill.compute",
    "kv.transfer",
    "decode.queue",
    "decode.run",
    "gateway.detokenize",
}


def traced_request(stack: LocalStack, num_tokens: int) -> str:
    async def run() -> str:
        async with connect(stack.gateway_address) as channel:
            prompt = [2000 + (n * 13 + num_tokens) % 900 for n in range(num_tokens)]
            call = inference_pb2_grpc.InferenceStub(channel).Generate(token_request(prompt, greedy(5, ignore_eos=True)))
            responses = [response async for response in call]
            return responses[0].trace_id

    return asyncio.run(run())


def spans_of(stack: LocalStack, trace_id: str, wanted: set[str]) -> dict[str, Span]:
    deadline = time.monotonic() + 10
    with grpc.insecure_channel(stack.otlp_address) as channel:
        while True:
            request = trace_store_pb2.GetTraceRequest(trace_id=trace_id)
            reply = trace_store_pb2_grpc.TraceStoreStub(channel).GetTrace(request, timeout=5)
            data = TracesData.FromString(reply.otlp_traces_data)
            spans = {
                span.name: span
                for resource in data.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            }
            if wanted <= spans.keys() or time.monotonic() > deadline:
                return spans
            time.sleep(0.1)


def test_all_spans_of_a_hand_over(apart: LocalStack) -> None:
    trace_id = traced_request(apart, 700)
    spans = spans_of(apart, trace_id, APART)
    assert spans.keys() == APART
    root = spans["gateway.request"]
    assert not root.parent_span_id
    for name, span in spans.items():
        assert span.trace_id.hex() == trace_id
        assert name == "gateway.request" or span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert len(spans["prefill.compute"].events) == 2  # chunks of 512 and 188 tokens
    # KV moves while prefill computes, and decode runs only once all of it is there.
    assert spans["kv.transfer"].start_time_unix_nano < spans["prefill.compute"].end_time_unix_nano
    assert spans["decode.run"].start_time_unix_nano >= spans["kv.transfer"].start_time_unix_nano
    # The first token reaches the client before decode has started.
    assert spans["gateway.detokenize"].start_time_unix_nano <= spans["decode.run"].start_time_unix_nano
    attributes = {item.key: item.value for item in spans["kv.transfer"].attributes}
    assert attributes["baton.kv.blocks"].int_value == 44


def test_aggregated_spans(aggregated: LocalStack) -> None:
    wanted = APART - {"decode.reserve", "prefill.queue", "kv.transfer"}
    assert spans_of(aggregated, traced_request(aggregated, 60), wanted).keys() == wanted
