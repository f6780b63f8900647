"""The roofline of committed steps: what they reach beside what reading and computing allow, as a PNG or SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baton.bench.costs import CEILINGS, Ceiling
from baton.bench.offline import step_cost
from baton.errors import BatonError, ErrorCode, invalid

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706")
_MARKERS = {"decode_step_ms": "o", "prefill_ttft_ms": "s"}


class Point(msgspec.Struct, frozen=True):
    """One measured step."""

    model: str
    metric: str
    label: str  # what was varied
    intensity: float  # operations a byte read
    flop_s: float  # reached


def points(entries: Sequence[dict[str, Any]]) -> tuple[list[Point], str]:
    """Of the entries that are steps on a GPU with known ceilings, and that GPU's name.

    Raises:
        BatonError: NOT_FOUND when none is.
    """
    found, gpus = [], set()
    for entry in entries:
        cost = step_cost(entry)
        if cost is not None and entry.get("gpu") in CEILINGS:
            gpus.add(entry["gpu"])
            label = str(entry["params"].get("batch") or entry["params"]["tokens"])
            reached = cost.flop / (entry["value"] / 1e3)
            found.append(Point(entry["model"], entry["metric"], label, cost.flop / cost.read_bytes, reached))
    if len(gpus) != 1:
        names = ", ".join(CEILINGS)
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"got steps on {', '.join(sorted(gpus)) or 'no GPU with known ceilings'}, expected one of {names}; run "
            "`baton bench latency --device gpu` there",
        )
    return found, gpus.pop()


def draw(found: Sequence[Point], gpu: str, path: Path) -> None:
    """Writes the plot; the format is the path's ending, .png or .svg.

    Raises:
        BatonError: INVALID_ARGUMENT for another ending; FAILED_PRECONDITION when matplotlib is missing.
    """
    if path.suffix not in (".png", ".svg"):
        raise invalid(f"got --out {path}, expected a name that ends in .png or .svg")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"a roofline plot needs matplotlib ({error}); install it with: pip install 'baton[bench]'"
        raise BatonError(ErrorCode.FAILED_PRECONDITION, message) from error
    ceiling = CEILINGS[gpu]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    low, high = (edge([point.intensity for point in found]) for edge in (min, max))
    x = np.geomspace(low / 3, max(high, ceiling.flop_s / ceiling.read_bytes_s) * 3, 200)
    axes.loglog(x, [roof(ceiling, value) / 1e12 for value in x], color="black", label=_roof_name(ceiling))
    for colour, model in zip(_COLOURS, sorted({point.model for point in found}), strict=False):
        for metric, marker in _MARKERS.items():
            own = [point for point in found if (point.model, point.metric) == (model, metric)]
            name = f"{model}, {'decode, by batch' if metric.startswith('decode') else 'prefill, by tokens'}"
            xs, ys = [point.intensity for point in own], [point.flop_s / 1e12 for point in own]
            axes.plot(xs, ys, marker, color=colour, label=name, markersize=6, alpha=0.8)
            for point, px, py in zip(own, xs, ys, strict=True):
                axes.annotate(point.label, (px, py), (4, -10), textcoords="offset points", fontsize=7)
    axes.set(xlabel="operations a byte read", ylabel="TFLOP/s", title=f"Engine steps on one {gpu}, bfloat16")
    axes.grid(which="major", color="#e5e7eb")
    axes.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "baton", "svg.fonttype": "none"}):  # the same file from the same data
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def roof(ceiling: Ceiling, intensity: float) -> float:
    """Operations a second that the ceiling allows at that many operations a byte."""
    return min(ceiling.flop_s, intensity * ceiling.read_bytes_s)


def _roof_name(ceiling: Ceiling) -> str:
    return f"measured ceilings: {ceiling.read_bytes_s / 1e12:g} TB/s, {ceiling.flop_s / 1e12:g} TFLOP/s"
