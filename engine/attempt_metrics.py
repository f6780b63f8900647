"""What a service counts of its attempts: how each ended, and how long the parts of its hand-over took."""

from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics
from baton.types import Role
from engine.messages import Aborted, Admitted, Event, Failed, Finished, Moved


class AttemptMetrics:
    """Told of every attempt's admission and end; a token costs nothing."""

    def __init__(self, metrics: Metrics, role: Role) -> None:
        self._role = role
        self._ended = metrics.counter(declared.ATTEMPTS_ENDED)
        parts = metrics.histogram(declared.HAND_OVER_PART)
        self._part = {name: parts.labels(name) for name in _PARTS[role]}

    def observe(self, event: Event) -> None:
        """An `Admitted`, or the event that ends an attempt."""
        match event:
            case Admitted():
                self._observe("admit", event.kv_ready_unix_ns, event.admitted_unix_ns)
            case Finished():
                self._end("done")
                self._parts_of(event)
            case Moved():
                self._end("moved")
            case Failed():
                self._end(event.code.value)
            case Aborted():
                self._end("aborted")
            case _:
                return  # a refused reservation was no attempt yet

    def _end(self, outcome: str) -> None:
        self._ended.labels(self._role.value, outcome).inc()

    def _parts_of(self, event: Finished) -> None:
        timeline = event.timeline
        if "queue" in self._part:
            self._observe("queue", timeline.queued_unix_ns, timeline.started_unix_ns)
            self._observe("compute", timeline.started_unix_ns, timeline.first_token_unix_ns)
        if event.transfer and "transfer" in self._part:
            self._part["transfer"].observe(event.transfer.exposed_us / 1e6)

    def _observe(self, part: str, start_unix_ns: int, end_unix_ns: int) -> None:
        self._part[part].observe(max(0, end_unix_ns - start_unix_ns) / 1e9)  # clocks of two hosts can disagree


_PARTS = {
    Role.PREFILL: ("queue", "compute", "transfer"),
    Role.DECODE: ("admit",),
    Role.AGGREGATED: ("queue", "compute"),
}
