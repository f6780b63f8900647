"""`baton bench compare`: intervals that hold what they should, and verdicts that follow from them."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from baton.bench.bootstrap import Mean, Percentile, ratio_interval
from baton.bench.compare import Verdict, compare
from baton.bench.load.lag import ClientLag
from baton.bench.load.options import LoadOptions
from baton.bench.percentiles import percentile
from baton.bench.rows import RequestRow
from baton.bench.run_folder import Run, RunInfo, write_run
from baton.bench.slo import parse_slo
from baton.bench.summary import summarize
from baton.bench.workloads.options import WorkloadOptions
from baton.cli import main

SLO = parse_slo("ttft=120ms")


def made_up_run(seed: int, ttft_ms: float, itl_ms: float, rate: float = 10.0, **fields: object) -> Run:
    """200 requests whose latencies scatter by a tenth."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(200):
        gaps = itl_ms * generator.normal(1, 0.1, 19)
        arrivals = np.cumsum([ttft_ms * generator.normal(1, 0.1), *gaps]).tolist()
        sent_s = number / rate
        rows.append(RequestRow(number, 0, 0, sent_s, sent_s, sent_s + arrivals[-1] / 1e3, 16, 20, arrivals_ms=arrivals))
    options = LoadOptions("grpc://h:1", "m", WorkloadOptions(), rate=rate)
    info = RunInfo(options, SLO, [ClientLag(0, 1, 1, 1, 1, 0.1)], [], False, {}, "command", "machine", "abc", 0.0)
    return Run(msgspec.structs.replace(info, **fields), rows)


def verdicts(a: Run, b: Run) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in compare(a, b, 300, 0.95, 0).findings}


def test_an_unweighted_percentile_is_the_nearest_rank() -> None:
    values = np.random.default_rng(0).normal(10, 1, 501).tolist()
    groups = [values[:100], values[100:150], [], values[150:]]
    for share in (0.01, 0.5, 0.99):
        assert Percentile(groups, share).measured() == percentile(values, share)


def test_a_drawn_percentile_counts_a_group_as_often_as_it_is_drawn() -> None:
    found = Percentile([[1.0, 2.0], [3.0]], 0.5)
    assert found.of(np.array([1, 0])) == 1.0
    assert found.of(np.array([0, 2])) == 3.0
    assert found.of(np.array([1, 3])) == 3.0
    assert np.isnan(found.of(np.array([0, 0])))


def test_intervals_hold_the_true_ratio_about_as_often_as_they_say() -> None:
    generator, held, trials = np.random.default_rng(1), 0, 100
    for trial in range(trials):
        a, b = (Percentile([[value] for value in generator.exponential(mean, 80)], 0.5) for mean in (1.0, 1.5))
        ratio = ratio_interval(a, b, 200, 0.9, trial)
        assert ratio is not None
        held += ratio.low <= 1.5 <= ratio.high
    assert 80 <= held <= 98


def test_a_side_without_values_has_no_ratio() -> None:
    assert ratio_interval(Mean([]), Mean([1.0]), 100, 0.9, 0) is None
    assert ratio_interval(Percentile([], 0.5), Percentile([[1.0]], 0.5), 100, 0.9, 0) is None
    assert ratio_interval(Mean([0.0]), Mean([1.0]), 100, 0.9, 0) is None


def test_what_differs_is_told_apart_from_what_does_not() -> None:
    found = verdicts(made_up_run(0, 100.0, 20.0), made_up_run(1, 110.0, 20.0))
    assert found["TTFT p50"] is Verdict.WORSE
    assert found["goodput"] is Verdict.WORSE
    assert found["ITL p50"] is Verdict.OPEN
    assert found["output"] is Verdict.OPEN
    found = verdicts(made_up_run(0, 100.0, 20.0), made_up_run(1, 100.0, 10.0))
    assert found["ITL p50"] is found["ITL p99"] is found["end to end p50"] is Verdict.BETTER
    assert found["TTFT p50"] is Verdict.OPEN


def test_a_run_beside_itself_shows_no_difference() -> None:
    run = made_up_run(0, 100.0, 20.0)
    comparison = compare(run, run, 300, 0.95, 0)
    assert {finding.verdict for finding in comparison.findings} == {Verdict.OPEN}
    assert comparison.verdict.startswith("No difference is shown in TTFT p50, ")
    assert comparison.warnings == []


def test_what_makes_a_comparison_doubtful_is_said() -> None:
    slow_client = [ClientLag(0, 50, 50, 1, 1, 0.1)]
    other = made_up_run(1, 100.0, 20.0, rate=20.0, lags=slow_client, interrupted=True, machine="another")
    other.rows[0].error = "unavailable"
    said = " ".join(compare(made_up_run(0, 100.0, 20.0), other, 100, 0.95, 0).warnings)
    for words in (
        "rate 10.0 and 20.0",
        "different machines",
        "In B the client was the bottleneck",
        "B was interrupted",
        "1 of 200 requests of B failed",
    ):
        assert words in said


def test_the_command_prints_ratios_and_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, run in (("a", made_up_run(0, 100.0, 20.0)), ("b", made_up_run(1, 100.0, 10.0))):
        write_run(tmp_path / name, run.info, run.rows, summarize(run.rows, SLO), "serve", parquet=False)
    folders = [str(tmp_path / "a"), str(tmp_path / "b"), "--resamplings", "100"]
    with pytest.raises(SystemExit):
        main(["bench", "compare", *folders])
    assert "B is better in " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "compare", *folders, "--json"])
    found = json.loads(capsys.readouterr().out)
    itl = next(finding for finding in found["findings"] if finding["name"] == "ITL p50")
    assert itl["low"] < itl["ratio"] < itl["high"]
    assert itl["ratio"] == pytest.approx(0.5, rel=0.05)
    with pytest.raises(SystemExit) as caught:
        main(["bench", "compare", str(tmp_path), str(tmp_path / "a")])
    assert caught.value.code == 1
    assert "expected a folder that `baton bench serve` wrote" in capsys.readouterr().err
