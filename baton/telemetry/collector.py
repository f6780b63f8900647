"""A small OTLP receiver for the local stack: keeps the newest traces in memory and passes all spans on if asked to."""

import collections
import logging
import queue
import threading
from concurrent import futures

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.channel import open_blocking_channel
from baton.rpc import trace_store_pb2, trace_store_pb2_grpc
from baton.tls import Tls

logger = logging.getLogger(__name__)

MAX_TRACES = 256
MAX_MESSAGE_BYTES = 64 << 20
MAX_SPANS_PER_TRACE = 10_000
MAX_SPANS = 100_000  # of all traces together: some 100 MB
FORWARD_QUEUE_BATCHES = 64
FORWARD_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0


class TraceBuffer:
    """The newest traces, oldest dropped first. Safe to use from several threads."""

    def __init__(
        self, max_traces: int = MAX_TRACES, max_spans_per_trace: int = MAX_SPANS_PER_TRACE, max_spans: int = MAX_SPANS
    ) -> None:
        self._max_traces = max_traces
        self._max_spans_per_trace = max_spans_per_trace
        self._max_spans = max_spans
        self._lock = threading.Lock()
        self._traces: collections.OrderedDict[bytes, trace_pb2.TracesData] = collections.OrderedDict()
        self._span_counts: dict[bytes, int] = {}

    def add(self, batches: collections.abc.Iterable[trace_pb2.ResourceSpans]) -> None:
        """Files each span under its trace; spans beyond a trace's limit are dropped."""
        with self._lock:
            for resource_spans in batches:
                for scope_spans in resource_spans.scope_spans:
                    self._add_scope(resource_spans, scope_spans)
            while len(self._traces) > self._max_traces or (
                len(self._traces) > 1 and sum(self._span_counts.values()) > self._max_spans
            ):
                trace_id, _ = self._traces.popitem(last=False)
                del self._span_counts[trace_id]

    def get(self, trace_id: bytes) -> bytes:
        """The serialized TracesData of a trace; empty when unknown."""
        with self._lock:
            data = self._traces.get(trace_id)
            return b"" if data is None else data.SerializeToString()

    def _add_scope(self, resource_spans: trace_pb2.ResourceSpans, scope_spans: trace_pb2.ScopeSpans) -> None:
        targets: dict[bytes, trace_pb2.ScopeSpans] = {}
        for span in scope_spans.spans:
            count = self._span_counts.get(span.trace_id, 0)
            if count >= self._max_spans_per_trace:
                continue
            if span.trace_id not in targets:
                data = self._traces.setdefault(span.trace_id, trace_pb2.TracesData())
                group = data.resource_spans.add(resource=resource_spans.resource)
                targets[span.trace_id] = group.scope_spans.add(scope=scope_spans.scope)
            targets[span.trace_id].spans.append(span)
            self._span_counts[span.trace_id] = count + 1


class Forwarder:
    """Sends batches on to another OTLP receiver on a thread of its own; drops when that one is slow or away."""

    def __init__(self, endpoint: str, tls: Tls | None = None) -> None:
        """`endpoint` is host:port; with http:// in front `tls` is not used for it."""
        self._endpoint = endpoint
        self._tls = tls
        self._queue: queue.Queue[trace_service_pb2.ExportTraceServiceRequest | None] = queue.Queue(
            FORWARD_QUEUE_BATCHES
        )
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="otlp-forwarder", daemon=True)
        self._thread.start()

    def offer(self, batch: trace_service_pb2.ExportTraceServiceRequest) -> None:
        """Queues a batch, or drops it when the queue is full. Never waits."""
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self._count_dropped("its queue is full")

    def close(self) -> None:
        """Sends what is queued (for at most `CLOSE_TIMEOUT_S`) and stops. Idempotent."""
        while self._thread.is_alive():
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._discard_oldest()
            else:
                self._thread.join(CLOSE_TIMEOUT_S)
                return

    def _run(self) -> None:
        tls = None if self._endpoint.startswith("http://") else self._tls
        with open_blocking_channel(self._endpoint.removeprefix("http://"), tls) as channel:
            stub = trace_service_pb2_grpc.TraceServiceStub(channel)
            while (batch := self._queue.get()) is not None:
                try:
                    stub.Export(batch, timeout=FORWARD_TIMEOUT_S)
                except grpc.RpcError as error:
                    self._count_dropped(str(error.code()))

    def _discard_oldest(self) -> None:
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return  # the thread was quicker
        self._count_dropped("closing")

    def _count_dropped(self, reason: str) -> None:
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th, ... time
            logger.warning("%d batches of spans not forwarded to %s: %s", self._dropped, self._endpoint, reason)


class _Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, buffer: TraceBuffer, forwarder: Forwarder | None) -> None:
        self._buffer = buffer
        self._forwarder = forwarder

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self._buffer.add(request.resource_spans)
        if self._forwarder is not None:
            self._forwarder.offer(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Store(trace_store_pb2_grpc.TraceStoreServicer):
    def __init__(self, buffer: TraceBuffer) -> None:
        self._buffer = buffer

    def GetTrace(
        self, request: trace_store_pb2.GetTraceRequest, context: grpc.ServicerContext
    ) -> trace_store_pb2.GetTraceResponse:
        try:
            trace_id = bytes.fromhex(request.trace_id)
        except ValueError:
            message = f"got trace_id {request.trace_id!r}, expected 32 hex digits"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        return trace_store_pb2.GetTraceResponse(otlp_traces_data=self._buffer.get(trace_id))


class Collector:
    """Both services on one gRPC server with threads, so that a launcher without an event loop can run it."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, forward_to: str | None = None, tls: Tls | None = None
    ) -> None:
        """Starts at once; port 0 takes a free one, `address` tells which.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken.
        """
        self._forwarder: Forwarder | None = None
        # Without so_reuseport = 0 a second collector on the same port would start and take half of the spans.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        self._server = grpc.server(futures.ThreadPoolExecutor(4, "collector"), options=options)
        try:
            if tls is None:
                bound = self._server.add_insecure_port(f"{host}:{port}")
            else:
                bound = self._server.add_secure_port(f"{host}:{port}", tls.server_credentials())
        except RuntimeError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"the collector cannot listen on {host}:{port} ({error})"
            ) from error
        self._forwarder = Forwarder(forward_to, tls) if forward_to else None
        buffer = TraceBuffer()
        receiver = _Receiver(buffer, self._forwarder)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, self._server)
        trace_store_pb2_grpc.add_TraceStoreServicer_to_server(_Store(buffer), self._server)
        self._server.start()
        self.address = f"{host}:{bound}"

    def close(self) -> None:
        """Stops listening and forwards what is left. Idempotent."""
        self._server.stop(0.2).wait()
        if self._forwarder is not None:
            self._forwarder.close()
