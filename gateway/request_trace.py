"""One request's spans: the root, its children, and how they end when the request fails."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from baton.rpc import inference_pb2
from baton.telemetry.tracing import Tracing, incoming_context, outgoing_metadata
from gateway.ttft import TtftParts


class TraceScope:
    """A span that other spans go below: those made here, and those of workers that get `metadata`."""

    def __init__(self, tracing: Tracing, span: Span, ttft: TtftParts) -> None:
        """`ttft`: of the whole request."""
        self._tracing = tracing
        self._span = span
        self.ttft = ttft
        self.context = trace.set_span_in_context(span)
        self.metadata = outgoing_metadata(self.context)

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Adds attributes to the span."""
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
            self.ttft.span_ended(name)

    def record(self, name: str, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """A child span that is already over."""
        self._tracing.record(name, self.context, start_unix_ns, end_unix_ns, attributes)

    @contextmanager
    def attempt(self, epoch: int, after: Exception) -> Iterator["TraceScope"]:
        """The span `gateway.attempt` around another attempt, made because of `after`."""
        self.ttft.lap("retry")
        with self.child("gateway.attempt") as span:
            span.set_attributes({"baton.attempt.epoch": epoch, "baton.attempt.after": _describe(after)})
            yield TraceScope(self._tracing, span, self.ttft)


class RequestTrace(TraceScope):
    """The root span `gateway.request`, continuing the client's trace when its metadata names one."""

    def __init__(self, tracing: Tracing, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        context = incoming_context(metadata)
        span = tracing.tracer.start_span("gateway.request", context=context, kind=SpanKind.SERVER)
        super().__init__(tracing, span, TtftParts())
        self._ended = False
        self._outcome_known = False
        self.trace_id = format(self._span.get_span_context().trace_id, "032x")

    def fail(self, error: BaseException) -> None:
        """The request ends with `error`."""
        self._outcome_known = True
        self._span.set_status(Status(StatusCode.ERROR, _describe(error)))

    def sends(self, responses: Iterable[inference_pb2.GenerateResponse]) -> None:
        """These go out now; with the first tokens among them the parts of TTFT are known."""
        if any(response.token_ids for response in responses) and (parts := self.ttft.sent()):
            self.set(parts)

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
