"""What admission counts."""

from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics
from gateway.admission.core import AdmissionCore


class AdmissionMetrics:
    """One a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._queued = metrics.gauge(declared.ADMISSION_QUEUED)
        self._limit = metrics.gauge(declared.ADMISSION_LIMIT)
        self._running = metrics.gauge(declared.ADMISSION_RUNNING)
        self.refusals = metrics.counter(declared.ADMISSION_REFUSALS)
        self.wait_seconds = metrics.histogram(declared.ADMISSION_WAIT)

    def show(self, core: AdmissionCore) -> None:
        """Reads the core's numbers at each scrape."""
        self._queued.set_function(lambda: core.queued)
        self._limit.set_function(lambda: core.limit)
        self._running.set_function(lambda: core.running)
