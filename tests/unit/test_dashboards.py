"""Dashboards and alert rules: every query parses, and uses what is declared the way its kind wants."""

import re

import promql_parser
import pytest

from baton.telemetry.metrics import Kind, Metric, all_metrics
from compose.grafana.dashboards import DASHBOARDS, FOLDER, text_of
from tests.fakes.promql import nodes, queries, rules, selectors

METRICS = all_metrics()
FROM_SCRAPING = {"instance", "job"}  # labels that Prometheus adds
QUERIES = pytest.mark.parametrize("expr", [pytest.param(expr, id=place) for place, expr in queries().items()])


def metric_of(series: str) -> Metric:
    """A histogram is there under the names of its series only."""
    metric = METRICS.get(series) or METRICS[re.sub("_(bucket|sum|count)$", "", series)]
    assert (metric.kind is Kind.HISTOGRAM) == (metric.name != series)
    return metric


def labels_of(series: str) -> set[str]:
    own = {label.name for label in metric_of(series).labels}
    return own | FROM_SCRAPING | ({"le"} if series.endswith("_bucket") else set())


def test_the_json_is_what_the_script_makes() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {board.uid for board in DASHBOARDS}
    for board in DASHBOARDS:
        assert (FOLDER / f"{board.uid}.json").read_text() == text_of(board), "run python -m compose.grafana.dashboards"


@QUERIES
def test_a_query_selects_declared_labels_and_values(expr: str) -> None:
    found = [*selectors(expr)]
    assert found
    for selector in found:
        declared = {label.name: label.values for label in metric_of(selector.name).labels}
        for label, op, value in selector.matchers:
            assert label in declared, f"{selector.name} has no label {label}"
            possible = declared[label]
            if op == "=~" and value != ".*":
                assert set(value.split("|")) <= set(possible)
            elif op == "=":
                assert value in possible


@QUERIES
def test_a_query_groups_by_labels_that_its_series_have(expr: str) -> None:
    for node in nodes(expr):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            for selector in selectors(node.prettify()):
                assert set(node.modifier.labels) <= labels_of(selector.name)


@QUERIES
def test_a_query_takes_rates_of_counters_and_of_nothing_else(expr: str) -> None:
    calls = [node for node in nodes(expr) if isinstance(node, promql_parser.Call)]
    rated = {
        selector.name
        for call in calls
        if call.func.name in ("rate", "increase")
        for argument in call.args
        for selector in selectors(argument.prettify())
    }
    for selector in selectors(expr):
        assert (metric_of(selector.name).kind is not Kind.GAUGE) == (selector.name in rated)
    for call in calls:
        if call.func.name == "histogram_quantile":
            assert all(s.name.endswith("_bucket") for s in selectors(call.args[1].prettify()))
            assert "le" in call.args[1].modifier.labels


def test_legends_and_annotations_name_labels_that_are_left() -> None:
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                grouped = re.findall(r"by \(([^)]*)\)", query.expr)
                for label in re.findall(r"{{(\w+)}}", query.legend):
                    assert any(label in labels.split(", ") for labels in grouped), f"{panel.title}: {query.legend}"
    for rule in rules():
        grouped = {name for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for name in labels.split(", ")}
        texts = rule["annotations"]
        assert texts.keys() == {"summary", "description"}
        assert set(re.findall(r"\$labels\.(\w+)", texts["summary"] + texts["description"])) <= grouped
        assert rule["labels"]["severity"] in ("warning", "critical")
