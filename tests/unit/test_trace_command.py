"""`baton trace` in front of a trace store with a request's spans."""

from collections.abc import Iterator

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from typer.testing import CliRunner

from baton.cli.app import app
from baton.errors import BatonError, ErrorCode
from baton.telemetry.collector import Collector

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def span(name: str, number: int, parent: int, start_ms: int, end_ms: int, **us: int) -> Span:
    return Span(
        name=name,
        trace_id=bytes.fromhex(TRACE_ID),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        start_time_unix_nano=start_ms * 1_000_000,
        end_time_unix_nano=end_ms * 1_000_000,
        attributes=[
            KeyValue(key=f"baton.{name.replace('__', '.')}", value=AnyValue(int_value=value))
            for name, value in us.items()
        ],
    )


@pytest.fixture
def store() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def export(store: Collector, spans: list[Span]) -> None:
    batch = [ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])]
    with grpc.insecure_channel(store.address) as channel:
        stub = trace_service_pb2_grpc.TraceServiceStub(channel)
        stub.Export(trace_service_pb2.ExportTraceServiceRequest(resource_spans=batch), timeout=5)


def run(*arguments: str) -> tuple[str, BaseException | None]:
    done = CliRunner().invoke(app, ["trace", *arguments], env={"COLUMNS": "140"})
    return done.output, done.exception


def test_the_waterfall_and_the_parts_of_ttft(store: Collector) -> None:
    root = span(
        "gateway.request",
        1,
        0,
        0,
        100,
        ttft_us=40_000,
        ttft__tokenize_us=1000,
        ttft__queue_us=9000,
        ttft__send_us=30_000,
    )
    spans = [root, span("prefill.compute", 2, 1, 10, 40)]
    export(store, spans)
    output, error = run(TRACE_ID, "--traces", store.address)
    assert error is None, output
    assert output.index("gateway.request") < output.index("prefill.compute")
    assert "ttft" not in output.split("Time to the first token")[0]
    assert "Time to the first token: 40.00 ms" in output
    rows = {line.split()[0]: line.split()[1:3] for line in output.splitlines() if "%" in line}
    assert rows == {"tokenize": ["1.00", "2.5%"], "queue": ["9.00", "22.5%"], "send": ["30.00", "75.0%"]}


def test_a_request_without_a_token_has_no_parts(store: Collector) -> None:
    export(store, [span("gateway.request", 1, 0, 0, 100)])
    output, error = run(TRACE_ID, "--traces", store.address)
    assert error is None
    assert "Time to" not in output


@pytest.mark.parametrize(
    ("trace_id", "address", "code", "message"),
    [
        ("xyz", None, ErrorCode.INVALID_ARGUMENT, "got trace id 'xyz', expected 32 hex digits"),
        ("f" * 32, None, ErrorCode.NOT_FOUND, "does not know trace ffff"),
        (TRACE_ID, "127.0.0.1:1", ErrorCode.UNAVAILABLE, "no trace store at 127.0.0.1:1: UNAVAILABLE"),
        (TRACE_ID, "nowhere", ErrorCode.INVALID_ARGUMENT, "--traces"),
    ],
)
def test_what_is_wrong_is_told(
    store: Collector, trace_id: str, address: str | None, code: ErrorCode, message: str
) -> None:
    _, error = run(trace_id, "--traces", address or store.address)
    assert isinstance(error, BatonError)
    assert error.code is code
    assert message in error.message
