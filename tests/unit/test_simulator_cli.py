"""`baton simulate`: what it writes, and what it says to what it cannot simulate."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.bench.run_folder import read_run
from baton.errors import BatonError
from simulator.cli.app import app
from simulator.cli.flags import parse_failure


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ["run", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_run_reads_like_a_measured_one(tmp_path: Path) -> None:
    words = ["--prefill", "2", "--decode", "2", "--requests", "20", "--rate", "5", "--slo", "ttft=1s"]
    output = invoke(*words, "--label", "mode=apart", "--out", str(tmp_path / "run"))
    assert "20 complete, 0 failed" in output
    assert "2 prefill: busy" in output
    run = read_run(tmp_path / "run")
    assert len(run.rows) == 20
    assert run.info.labels == {"mode": "apart"}
    assert any("simulated, not measured" in note for note in run.info.notes)
    assert "sim_ttft_ms" in (tmp_path / "run" / "results.jsonl").read_text()
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_malformed_trace_line_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [0]}\n'
        '{"timestamp": 0, "input_length": -3}\n'
    )
    with pytest.raises(BatonError, match=r"trace\.jsonl, line 2: got"):
        invoke("--workload", "trace", "--trace", str(trace))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target", "x"], "--target, which has no meaning"),
        (["--tarce", "x"], "No such option: --tarce"),
        (["--num-blocks", "3"], "got --num-blocks 3, expected at least"),
        (["--copies", "2"], "--copies 2 of a load without end"),
        (["--costs", "/nowhere"], "--costs /nowhere"),
        (["--fail", "10"], "--fail: got '10'"),
        (["--link-gb-s", "0"], "--link-gb-s 0"),
        (["--rate", "0"], "--rate 0"),
    ],
)
def test_what_cannot_be_simulated_is_told(words: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(BatonError, match=told):
        invoke(*words, "--out", str(tmp_path / "out"))


@pytest.mark.parametrize("text", ["", "x:0.1", "-1:0.1", "1:0", "1:1.5", "inf:0.1", "nan:0.1"])
def test_failures_are_read_or_refused(text: str) -> None:
    with pytest.raises(BatonError, match="--fail: got"):
        parse_failure(text)
    assert parse_failure("60:0.1").share == 0.1
