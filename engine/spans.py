"""A request's life in the engine core as spans below its caller's."""

from collections.abc import Iterable, Mapping

from opentelemetry.util.types import AttributeValue

from baton.errors import ErrorCode
from baton.telemetry.tracing import SpanEvent, Tracing, incoming_context
from baton.types import TransferStats
from engine.messages import Timeline

Attributes = Mapping[str, AttributeValue]


class AttemptSpans:
    """Writes the spans of one attempt; every span says which worker it was."""

    def __init__(self, tracing: Tracing, metadata: Iterable[tuple[str, str | bytes]] | None, worker: str) -> None:
        """`metadata`: the call's, with the caller's trace context in it."""
        self._tracing = tracing
        self._parent = incoming_context(metadata)
        self._common: dict[str, AttributeValue] = {"baton.worker": worker}

    def failed(self, code: ErrorCode) -> None:
        """Spans written from here on are of an attempt that failed."""
        self._common["error.type"] = code.value

    def queue(self, role: str, timeline: Timeline) -> None:
        """Waiting for the first step: `prefill.queue` or `decode.queue`."""
        end_ns = timeline.started_unix_ns or timeline.finished_unix_ns
        self.record(f"{role}.queue", timeline.queued_unix_ns, end_ns)

    def compute(self, timeline: Timeline, cached_tokens: int) -> None:
        """`prefill.compute` up to the first token, with an event a chunk. Nothing for an attempt that never started."""
        if not timeline.started_unix_ns:
            return
        chunks = timeline.prefill_chunks
        events = [
            SpanEvent(
                "chunk",
                chunk.start_unix_ns,
                {"baton.tokens": chunk.num_tokens, "baton.us": (chunk.end_unix_ns - chunk.start_unix_ns) // 1000},
            )
            for chunk in chunks
        ]
        attributes = {
            "baton.prefill.tokens": sum(chunk.num_tokens for chunk in chunks),
            "baton.prefill.cached_tokens": cached_tokens,
            "baton.prefill.chunks": len(chunks),
        }
        end_ns = timeline.first_token_unix_ns or timeline.finished_unix_ns
        self.record("prefill.compute", timeline.started_unix_ns, end_ns, attributes, events)

    def transfer(self, timeline: Timeline, stats: TransferStats | None) -> None:
        """`kv.transfer`, from the first write's start to the last one's end. Nothing where nothing was written."""
        if not timeline.writes:
            return
        start_ns = min(write.posted_unix_ns for write in timeline.writes)
        end_ns = max(write.done_unix_ns for write in timeline.writes)
        num_bytes = sum(write.bytes for write in timeline.writes)
        attributes: dict[str, AttributeValue] = {
            "baton.kv.blocks": sum(write.blocks for write in timeline.writes),
            "baton.kv.bytes": num_bytes,
            "baton.kv.writes": len(timeline.writes),
            "baton.kv.gb_s": num_bytes / max(1, end_ns - start_ns),  # bytes a nanosecond
        }
        if stats:
            attributes |= {"baton.kv.post_us": stats.post_us, "baton.kv.exposed_us": stats.exposed_us}
        self.record("kv.transfer", start_ns, end_ns, attributes)

    def record(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
        events: Iterable[SpanEvent] = (),
    ) -> None:
        """Any other span that is over."""
        self._tracing.record(name, self._parent, start_ns, end_ns, {**self._common, **(attributes or {})}, [*events])
