"""Result lines as rows of a table: each value beside its floor and its baseline."""

from collections.abc import Iterable
from typing import Any

from baton.bench.summary_rows import show

_MORE_IS_BETTER = ("/s", "ratio")  # ends of units


def result_rows(entries: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Metric, model and params, value, what the hardware allows, share of it that is reached, baseline, ratio to it.

    Shares and ratios are such that more is better: of times they are turned over.
    """
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        value, unit = entry["value"], entry["unit"]
        floor, baseline = entry.get("floor"), entry.get("baseline")
        rows.append(
            (
                entry["metric"],
                " ".join([entry["model"], *(f"{name}={given}" for name, given in entry["params"].items())]),
                f"{show(value)} {unit}",
                "" if floor is None else f"{show(floor)} {unit}",
                "" if floor is None else f"{_gain(value, floor, unit):.0%}",
                "" if baseline is None else f"{show(baseline['value'])} ({baseline['name']})",
                "" if baseline is None else f"{_gain(value, baseline['value'], unit):.2f}x",
            )
        )
    return rows


def _gain(value: float, other: float, unit: str) -> float:
    if not value or not other:
        return float("nan")
    return value / other if unit.endswith(_MORE_IS_BETTER) else other / value
