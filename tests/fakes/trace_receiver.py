"""An OTLP receiver that remembers spans."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class TraceReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens at `address`."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self._spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, trace_id: str, names: set[str], within_s: float = 10.0) -> dict[str, Span]:
        """The spans of one trace by name, once all of `names` are there; blocks."""
        deadline_s = time.monotonic() + within_s
        while True:
            found = {span.name: span for span in list(self._spans) if span.trace_id.hex() == trace_id}
            if names <= found.keys():
                return found
            assert time.monotonic() < deadline_s, f"got {sorted(found)}, expected {sorted(names)}"
            time.sleep(0.05)

    def close(self) -> None:
        self._server.stop(None)
