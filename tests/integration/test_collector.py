"""The collector with the real exporter: spans become one trace, limits hold, spans are passed on."""

import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from baton.errors import BatonError
from baton.rpc import trace_store_pb2, trace_store_pb2_grpc
from baton.telemetry.collector import Collector, Forwarder, TraceBuffer
from baton.telemetry.tracing import SpanEvent, Tracing, incoming_context, outgoing_metadata
from baton.telemetry.tree import TraceSpan, parse_spans


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def get(address: str, trace_id: str) -> list[TraceSpan]:
    with grpc.insecure_channel(address) as channel:
        stub = trace_store_pb2_grpc.TraceStoreStub(channel)
        answer = stub.GetTrace(trace_store_pb2.GetTraceRequest(trace_id=trace_id), timeout=5)
    return parse_spans(answer.otlp_traces_data)


def send_trace(address: str) -> str:
    """A gateway's span with a worker's below it, from two tracers as from two processes."""
    gateway, worker = Tracing("gateway", address), Tracing("prefill", address, instance="prefill-0")
    with gateway.tracer.start_as_current_span("gateway.request") as root:
        metadata = outgoing_metadata()
        now = time.time_ns()
        events = [SpanEvent("chunk", now, {"tokens": 16})]
        worker.record("prefill.compute", incoming_context(metadata), now, now + 5_000_000, {"tokens": 16}, events)
    gateway.close()
    worker.close()
    return trace.format_trace_id(root.get_span_context().trace_id)


def test_spans_of_two_processes_become_one_trace(collector: Collector) -> None:
    spans = get(collector.address, send_trace(collector.address))
    by_name = {span.name: span for span in spans}
    assert {span.name: span.service for span in spans} == {"gateway.request": "gateway", "prefill.compute": "prefill"}
    assert by_name["prefill.compute"].parent_id == by_name["gateway.request"].span_id
    assert by_name["prefill.compute"].duration_ms == pytest.approx(5)
    assert by_name["prefill.compute"].attributes["tokens"] == 16
    assert by_name["prefill.compute"].events == ("chunk",)


def test_an_unknown_trace_is_empty_and_a_wrong_id_is_refused(collector: Collector) -> None:
    assert get(collector.address, "ab" * 16) == []
    with pytest.raises(grpc.RpcError, match="got trace_id 'xyz', expected 32 hex digits"):
        get(collector.address, "xyz")


def test_spans_are_passed_on_to_a_further_receiver(collector: Collector) -> None:
    front = Collector(forward_to=collector.address)
    trace_id = send_trace(front.address)
    front.close()
    assert len(get(collector.address, trace_id)) == 2


def test_a_further_receiver_that_is_away_holds_up_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        front = Collector(forward_to=f"127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        trace_id = send_trace(front.address)
        assert len(get(front.address, trace_id)) == 2
        assert time.monotonic() - start < 5
        front.close()
        front.close()


def test_a_full_forwarding_queue_drops_and_never_waits() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        forwarder = Forwarder(f"127.0.0.1:{deaf.getsockname()[1]}")
        start = time.monotonic()
        for _ in range(1000):
            forwarder.offer(batch_of(b"a" * 16, 1))
        assert time.monotonic() - start < 2
        closer = threading.Thread(target=forwarder.close)
        closer.start()
        closer.join(15)
        assert not closer.is_alive()


def test_a_taken_port_is_refused(collector: Collector) -> None:
    with pytest.raises(BatonError, match="cannot listen on"):
        Collector(port=int(collector.address.rpartition(":")[2]))


def batch_of(trace_id: bytes, count: int) -> trace_service_pb2.ExportTraceServiceRequest:
    request = trace_service_pb2.ExportTraceServiceRequest()
    group = request.resource_spans.add().scope_spans.add()
    for index in range(count):
        group.spans.add(trace_id=trace_id, span_id=index.to_bytes(8, "big"), name="s")
    return request


def fill(buffer: TraceBuffer, number: int, count: int) -> bytes:
    trace_id = number.to_bytes(16, "big")
    buffer.add(batch_of(trace_id, count).resource_spans)
    return trace_id


def count_of(buffer: TraceBuffer, trace_id: bytes) -> int:
    data = trace_pb2.TracesData.FromString(buffer.get(trace_id))
    return sum(len(scope.spans) for group in data.resource_spans for scope in group.scope_spans)


def test_only_the_newest_traces_are_kept() -> None:
    buffer = TraceBuffer(max_traces=3)
    ids = [fill(buffer, number, 2) for number in range(5)]
    assert [count_of(buffer, id_) for id_ in ids] == [0, 0, 2, 2, 2]


def test_a_traces_spans_are_limited_over_all_batches() -> None:
    buffer = TraceBuffer(max_spans_per_trace=10)
    for _ in range(3):
        trace_id = fill(buffer, 1, 4)
    assert count_of(buffer, trace_id) == 10


def test_all_spans_together_are_limited() -> None:
    buffer = TraceBuffer(max_spans=10)
    ids = [fill(buffer, number, 4) for number in range(4)]
    assert [count_of(buffer, id_) for id_ in ids] == [0, 0, 4, 4]
