"""Tracing that makes no spans: a simulation runs thousands of requests a minute, and nobody looks at their traces."""

from opentelemetry.trace import NoOpTracer

from baton.telemetry.tracing import Tracing


class _Silent(Tracing):
    def __init__(self) -> None:
        self.tracer = NoOpTracer()


SILENT = _Silent()
