"""One process's metrics: its registry, what is asked for at a scrape, and the answer in Prometheus' text format."""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from baton.telemetry.metrics import Kind, Metric
from baton.types import Distribution

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Value = tuple[tuple[str, ...], float]  # label values in the declaration's order, and the number
Read = Callable[[], Iterable[Family]]
Refresh = Callable[[], Awaitable[None]]


class Metrics:
    """Made once a process. Instruments are made from declarations, each once; all are cheap and safe in any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._refreshes: list[Refresh] = []

    def counter(self, metric: Metric) -> Counter:
        """Of a declared counter; those without labels begin at 0."""
        return _with_all_labels(Counter(metric.name, metric.help, _names(metric), registry=self.registry), metric)

    def gauge(self, metric: Metric) -> Gauge:
        """Of a declared gauge."""
        return Gauge(metric.name, metric.help, _names(metric), registry=self.registry)

    def histogram(self, metric: Metric) -> Histogram:
        """Of a declared histogram."""
        return Histogram(metric.name, metric.help, _names(metric), registry=self.registry, buckets=metric.buckets)

    def read_at_scrape(self, read: Read) -> None:
        """`read` makes families (see `family`) from plain numbers, in the scraping thread."""
        self.registry.register(_Reader(read))

    def refresh_before_scrape(self, refresh: Refresh) -> None:
        """`refresh` runs on the event loop before each scrape, to fetch what `read` gives; it may not raise."""
        self._refreshes.append(refresh)

    async def refresh(self) -> None:
        """Fetches what is only known when asked for. On the event loop."""
        for refresh in self._refreshes:
            await refresh()

    async def exposition(self) -> bytes:
        """The body for a scraper, of the type `CONTENT_TYPE`. On the event loop, for a server that runs there."""
        await self.refresh()
        return generate_latest(self.registry)


class _Reader(Collector):
    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        return self._read()

    def describe(self) -> Iterable[Family]:
        return []  # else the registry would read at once to learn the names


def family(metric: Metric, values: Iterable[Value]) -> Family:
    """A declared counter or gauge with these values."""
    made: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        made = CounterMetricFamily(metric.name, metric.help, labels=_names(metric))
    else:
        made = GaugeMetricFamily(metric.name, metric.help, labels=_names(metric))
    for labels, value in values:
        made.add_metric(labels, value)
    return made


def histogram_family(metric: Metric, values: Mapping[tuple[str, ...], Distribution]) -> Family:
    """A declared histogram with these distributions over its own buckets; without counts it is left out."""
    made = HistogramMetricFamily(metric.name, metric.help, labels=_names(metric))
    bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
    for labels, distribution in values.items():
        if distribution.counts:
            counts = itertools.accumulate(distribution.counts)
            made.add_metric(labels, [*zip(bounds, counts, strict=True)], distribution.total)
    return made


def _names(metric: Metric) -> tuple[str, ...]:
    return tuple(label.name for label in metric.labels)


def _with_all_labels(counter: Counter, metric: Metric) -> Counter:
    """All series begin at 0, or the first event after a start would be no increase."""
    if metric.labels:
        for values in itertools.product(*(label.values for label in metric.labels)):
            counter.labels(*values)
    return counter
