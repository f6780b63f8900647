"""One request's spans: the root, its children, and how they end when the request fails."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from baton.telemetry.tracing import Tracing, incoming_context, outgoing_metadata


class RequestTrace:
    """The root span `gateway.request`, continuing the client's trace when its metadata names one."""

    def __init__(self, tracing: Tracing, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        self._tracing = tracing
        self._span = tracing.tracer.start_span(
            "gateway.request", context=incoming_context(metadata), kind=SpanKind.SERVER
        )
        self._ended = False
        self._outcome_known = False
        self.context = trace.set_span_in_context(self._span)
        self.trace_id = format(self._span.get_span_context().trace_id, "032x")
        self.metadata = outgoing_metadata(self.context)

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Adds attributes to the root."""
        self._span.set_attributes(attributes)

    @contextmanager
    def child(self, name: str) -> Iterator[Span]:
        """A child span around a block of code; an exception makes it an error."""
        span = self._tracing.tracer.start_span(name, context=self.context)
        try:
            yield span
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, _describe(error)))
            raise
        finally:
            span.end()

    def record(self, name: str, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """A child span that is already over."""
        self._tracing.record(name, self.context, start_unix_ns, end_unix_ns, attributes)

    def fail(self, error: BaseException) -> None:
        """The request ends with `error`."""
        self._outcome_known = True
        self._span.set_status(Status(StatusCode.ERROR, _describe(error)))

    def succeed(self) -> None:
        """The request's last response is made."""
        self._outcome_known = True

    def end(self) -> None:
        """Ends the root; without an outcome the client has gone away or given up. Idempotent."""
        if self._ended:
            return
        self._ended = True
        if not self._outcome_known:
            self._span.set_status(Status(StatusCode.ERROR, "cancelled, or past its deadline"))
        self._span.end()


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
