"""What a Grafana dashboard is made of here, and its JSON."""

from typing import Any, NamedTuple

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}  # as provisioning/datasources/prometheus.yml names it
_WIDTH, _HEIGHT = 12, 8  # of a panel, on a grid of 24 columns
_ALL = ".*"


class Query(NamedTuple):
    """PromQL, and what its series are called; `{{label}}` stands for a label's value."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One graph; `unit` as Grafana calls it."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""


class Dashboard(NamedTuple):
    """`uid` names its file, too. `role`: whether its queries take a `$role`, chosen in the dashboard."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    role: bool = False


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana imports and provisions it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["baton"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_role()] if dashboard.role else []},
        "panels": [_panel(index, panel) for index, panel in enumerate(dashboard.panels)],
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"x": index % 2 * _WIDTH, "y": index // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query.expr, "legendFormat": query.legend, "datasource": DATASOURCE}
            for at, query in enumerate(panel.queries)
        ],
    }


def _role() -> dict[str, Any]:
    return {
        "name": "role",
        "label": "Pool",
        "type": "query",
        "datasource": DATASOURCE,
        "query": "label_values(baton_worker_info, role)",
        "includeAll": True,
        "allValue": _ALL,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
