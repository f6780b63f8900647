"""Reports: valid markup, all of it in one file, charts where their values belong."""

import re
import xml.etree.ElementTree as ET

import pytest

from baton.bench.plot.axis import Axis, tick_text
from baton.bench.plot.chart import HEIGHT, WIDTH, Chart
from baton.bench.rows import RequestRow
from tests.fakes.bench_runs import report, sample_rows

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis("x", [3.0, 96.0]), [0, 20, 40, 60, 80]),
        (Axis("x", [0.5, 200.0], log=True), [0.5, 1, 2, 5, 10, 20, 50, 100, 200]),
        (Axis("x", [1e-3, 1e6], log=True), [10.0**power for power in range(-3, 7)]),
        (Axis("x", [5.0], from_zero=False), [5, 5.2, 5.4, 5.6, 5.8, 6]),
        (Axis("x", []), [0, 2, 4, 6, 8, 10]),
    ],
)
def test_ticks_are_round_and_within_the_axis(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == pytest.approx(ticks)


def test_ticks_are_short() -> None:
    assert [tick_text(value) for value in (0, 0.25, 20, 1500, 3e6)] == ["0", "0.25", "20", "1.5k", "3M"]


def test_marks_stand_where_their_values_belong() -> None:
    chart = Chart("a < b & 'c'", Axis("x", [0.0, 10.0]), Axis("y", [1.0, 100.0], log=True))
    chart.points("dots", [(0.0, 1.0), (10.0, 100.0), (float("nan"), 5.0)], ["first", "<second>", ""])
    chart.line("line", [(0.0, 1.0), (5.0, float("nan")), (10.0, 100.0), (10.0, 50.0)])
    root = ET.fromstring(chart.svg())
    low, high = root.findall(f"{SVG}circle")
    assert float(low.attrib["cx"]) < float(high.attrib["cx"]) <= WIDTH
    assert HEIGHT > float(low.attrib["cy"]) > float(high.attrib["cy"]) > 0
    assert high.find(f"{SVG}title").text == "<second>"  # type: ignore[union-attr]
    assert len(root.findall(f"{SVG}polyline")) == 2


def test_a_report_is_one_file_with_its_charts() -> None:
    text = report([*sample_rows(), RequestRow(30, 0, 0, 8.0, 8.0, 8.1, 16, 0, error="unavailable", message="gone")])
    assert not re.search(r"(src|href)\s*=", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "&lt;model&gt;" in text
    assert "&lt;b&gt;note" in text
    assert "1; first: gone" in text
    charts = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    titles = [chart.attrib["aria-label"] for chart in charts]
    assert titles == [
        "Time to first token",
        "Gaps between tokens (ITL)",
        "Latency against throughput, in windows of 1 s",
        "Latency of each request",
        "Output over time",
        "Requests under way",
    ]
    assert "SLO" in "".join(charts[0].itertext())


def test_a_report_of_failures_alone_has_no_charts() -> None:
    text = report([RequestRow(0, 0, 0, 0.0, 0.0, 0.1, 16, 0, error="unavailable", message="gone")])
    assert "<svg" not in text
    assert "Failed: unavailable" in text
