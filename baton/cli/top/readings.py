"""What processes say of themselves at one moment, and what has changed since the moment before."""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from baton.telemetry.metrics import Kind, Metric

_TIMEOUT_S = 5.0  # a service gives its core 2 s
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a private network's addresses


class Reading:
    """One process's metrics as of `at_s` on the monotonic clock."""

    def __init__(self, text: str, at_s: float) -> None:
        """Raises ValueError when `text` is no exposition."""
        self.at_s = at_s
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    def has(self, metric: Metric) -> bool:
        """Whether the process tells of it."""
        return _series(metric) in self._samples

    def total(self, metric: Metric, part: str = "", **labels: str) -> float:
        """Sum over the metric's series with these labels; `part`: _sum or _count, of a histogram."""
        samples = self._samples.get(metric.name + part, [])
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def label(self, metric: Metric, name: str) -> str:
        """A label of the metric's only series; "" where there is none."""
        samples = self._samples.get(_series(metric), [])
        return samples[0].labels.get(name, "") if samples else ""


def _series(metric: Metric) -> str:
    return metric.name + ("_count" if metric.kind is Kind.HISTOGRAM else "")


class Window(NamedTuple):
    """Two readings of one process; `before` is None at first, and after a restart."""

    before: Reading | None
    now: Reading

    def increase(self, metric: Metric, part: str = "", **labels: str) -> float | None:
        """Of a counter, or of a histogram's `part`; None when it is not known."""
        if self.before is None:
            return None
        more = self.now.total(metric, part, **labels) - self.before.total(metric, part, **labels)
        return more if more >= 0 else None  # it began anew

    def rate(self, metric: Metric, part: str = "", **labels: str) -> float | None:
        """`increase` a second."""
        more = self.increase(metric, part, **labels)
        return None if more is None or self.before is None else more / max(1e-9, self.now.at_s - self.before.at_s)

    def mean(self, histogram: Metric) -> float | None:
        """Of the values observed between the two."""
        return share(self.increase(histogram, "_sum"), self.increase(histogram, "_count"))


def share(part: float | None, whole: float | None) -> float | None:
    """None where there is nothing to share."""
    return None if part is None or not whole else part / whole


def read_all(urls: Mapping[str, str]) -> dict[str, Reading | str]:
    """Asks all at once; a process that does not answer has a reason in the place of a reading."""
    with ThreadPoolExecutor(max(1, len(urls))) as threads:
        return dict(zip(urls, threads.map(_read, urls.values()), strict=True))


def _read(url: str) -> Reading | str:
    try:
        with _DIRECT.open(url, timeout=_TIMEOUT_S) as response:
            text = response.read().decode()
        return Reading(text, time.monotonic())
    except (OSError, ValueError) as error:  # also an HTTP error, and what is no exposition
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"does not answer at {url} ({reason})"
