"""The queries of dashboards and alert rules, and what they select."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml

from compose.grafana.dashboards import DASHBOARDS

RULES = Path(__file__).parents[2] / "compose/prometheus/rules.yml"


class Selector(NamedTuple):
    """`name{matchers}` in a query."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value

    def matches(self, name: str, labels: dict[str, str]) -> bool:
        """As Prometheus would."""
        return name == self.name and all(_holds(labels.get(label, ""), op, value) for label, op, value in self.matchers)


def _holds(got: str, op: str, value: str) -> bool:
    matched = bool(re.fullmatch(value, got)) if "~" in op else got == value
    return matched != op.startswith("!")


def rules() -> list[dict[str, Any]]:
    """All alerts."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> dict[str, str]:
    """Every panel's and every rule's query, as Prometheus gets it, by where it stands."""
    found = {
        f"{board.uid}/{panel.title}/{at}": query.expr.replace("$__rate_interval", "1m").replace("$role", ".*")
        for board in DASHBOARDS
        for panel in board.panels
        for at, query in enumerate(panel.queries)
    }
    return found | {rule["alert"]: rule["expr"] for rule in rules()}


def nodes(expr: str) -> list[Any]:
    """All parts of a query; raises ValueError where Prometheus would refuse it."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), found.append, lambda node: None)
    return found


def selectors(expr: str) -> Iterator[Selector]:
    """What a query reads."""
    for node in nodes(expr):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple((m.name, _OPERATORS[str(m.op)], m.value) for m in node.matchers.matchers)
            yield Selector(node.name, matchers)


_OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
