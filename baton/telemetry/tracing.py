"""Spans: set-up for a process, and the trace context that travels in gRPC metadata (W3C traceparent)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from baton.tls import Tls

_PROPAGATOR = TraceContextTextMapPropagator()
_ERROR_TYPE = "error.type"  # of the semantic conventions: set on spans of operations that failed


class SpanEvent(NamedTuple):
    """A moment inside a span."""

    name: str
    unix_ns: int
    attributes: Mapping[str, AttributeValue]


class Tracing:
    """A process's tracer. Without an endpoint spans are made (so that ids exist) but go nowhere."""

    def __init__(
        self, service_name: str, otlp_endpoint: str | None, instance: str = "", tls: Tls | None = None
    ) -> None:
        """Exporting has its own thread and drops when full.

        Args:
            otlp_endpoint: host:port of an OTLP gRPC receiver; with http:// in front `tls` is not used for it.
        """
        resource = Resource.create({"service.name": service_name, "service.instance.id": instance})
        self._provider = TracerProvider(resource=resource)
        if otlp_endpoint:
            plain = tls is None or otlp_endpoint.startswith("http://")
            credentials = None if tls is None or plain else tls.channel_credentials()
            exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=plain, credentials=credentials, timeout=5)
            self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=200))
        self.tracer: trace.Tracer = self._provider.get_tracer("baton")

    def record(
        self,
        name: str,
        parent: Context | None,
        start_unix_ns: int,
        end_unix_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
        events: Sequence[SpanEvent] = (),
    ) -> None:
        """Writes a span that is already over, such as one measured in the engine core.

        An attribute `error.type` makes the span's status ERROR.
        """
        span = self.tracer.start_span(name, context=parent, start_time=start_unix_ns, attributes=attributes)
        for event in events:
            span.add_event(event.name, event.attributes, timestamp=event.unix_ns)
        if attributes and _ERROR_TYPE in attributes:
            span.set_status(Status(StatusCode.ERROR, str(attributes[_ERROR_TYPE])))
        span.end(end_time=max(start_unix_ns, end_unix_ns))

    def flush(self) -> None:
        """Waits (at most 2 s) until all ended spans are exported."""
        self._provider.force_flush(2000)

    def close(self) -> None:
        """Exports what is left and stops. Idempotent."""
        self._provider.shutdown()


def outgoing_metadata(context: Context | None = None) -> tuple[tuple[str, str], ...]:
    """gRPC metadata that carries `context` (default: the current one) to the next process."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return tuple(carrier.items())


def incoming_context(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """The caller's trace context out of a call's invocation metadata; an empty one when there is none."""
    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    return _PROPAGATOR.extract(carrier)
