"""Reading metrics as a Prometheus server does: over HTTP, by name and labels."""

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Scrape:
    """What one answer said."""

    def __init__(self, text: str) -> None:
        families = [*text_string_to_metric_families(text)]
        self.samples = [sample for family in families for sample in family.samples]
        self.types = {family.name: family.type for family in families}

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series of that name with these labels, and maybe others; fails when there is none."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"no {name} with {labels} among {sorted({s.name for s in self.samples})}"
        return sum(found)

    def by(self, label: str, name: str) -> Mapping[str, float]:
        """Values by one label."""
        return {s.labels[label]: s.value for s in self.samples if s.name == name}


def scrape(url: str) -> Scrape:
    """Asks for a process's metrics."""
    with _NO_PROXY.open(url, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return Scrape(response.read().decode())
