"""`baton bench sweep`: cells that are measured once, and a report of all."""

import re
from pathlib import Path

import pytest

from baton.bench.run_folder import read_run
from baton.bench.sweep import parse_configuration, parse_rates
from baton.cli import main
from baton.cli.stack_flags import parse_stack_flags
from baton.errors import BatonError
from tests.fakes.load_server import Script, load_server

FLAGS = "--requests 6 --warmup 0 --input-tokens 16 --output-tokens 4 --slo ttft=30s".split()  # noqa: SIM905


def sweep(rates: str, out: Path, *configurations: str, flags: list[str] = FLAGS) -> int:
    configs = [word for text in configurations for word in ("--config", text)]
    with pytest.raises(SystemExit) as caught:
        main(["bench", "sweep", "--rates", rates, "--out", str(out), *configs, "--", *flags])
    return int(caught.value.code or 0)


def test_a_sweep_measures_what_is_missing_and_reports_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with load_server(Script(ttft_s=0.01, itl_s=0.005)) as server:
        out, one, other = tmp_path / "sweep", f"one={server.grpc_url}", f"other={server.grpc_url}"
        assert sweep("20", out, one, other) == 0
        assert "other" in capsys.readouterr().out
        assert len(server.log()) == 12
        assert sweep("20", out, one, other, flags=[*FLAGS, "--temperature", "1"]) == 1
        assert "holds a sweep with --seed 0" in capsys.readouterr().err
        assert sweep("20,40", out, one) == 0
        log = server.log()
    assert len(log) == 18  # the new rate alone
    assert len({tuple(served.prompt) for served in log}) == 12  # the same of both, other ones at each rate
    report = (out / "report.html").read_text()
    assert "Goodput by rate" in report
    links = re.findall(r"href='([^']*)'", report)
    assert links == ["one/rate-20/report.html", "one/rate-40/report.html"]
    assert [len(read_run((out / link).parent).rows) for link in links] == [6, 6]


def test_a_cell_that_fails_is_named_and_its_log_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with load_server(Script(fail_every=1)) as failing:
        assert sweep("50", tmp_path, f"bad={failing.grpc_url}") == 1
    said = capsys.readouterr()
    assert "bad at 50 ended with exit code 1: error: no request was answered completely" in said.err
    assert "resource_exhausted" in (tmp_path / "bad" / "rate-50.log").read_text()


@pytest.mark.parametrize("text", ["", "0", "1,1", "1,x", "-1", "1,inf"])
def test_rates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BatonError, match="--rates"):
        parse_rates(text)


@pytest.mark.parametrize("text", ["", "=x", "apart", "../up=", "a b="])
def test_configurations_without_a_name_are_refused(text: str) -> None:
    with pytest.raises(BatonError, match="--config"):
        parse_configuration(text)


def test_a_configuration_is_flags_of_a_stack() -> None:
    assert parse_stack_flags(["--prefill", "2", "--aggregated", "--lease-s", "5"]) == {
        "prefill": 2,
        "aggregated": True,
        "lease_s": 5.0,
    }
    for words in (["--prefil", "2"], ["--prefill", "two"], ["prefill"]):
        with pytest.raises(BatonError, match="expected flags of `baton up`"):
            parse_stack_flags(words)


def test_what_the_sweep_sets_is_not_taken_from_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("1", tmp_path, "one=grpc://h:1", flags=["--rate=3"]) == 1
    assert "got --rate=3 behind --" in capsys.readouterr().err
