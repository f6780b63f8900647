"""`baton top`: rates between two readings, what is not known, and processes that come, go or do not answer."""

import io
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from baton.cli import main
from baton.cli.top.command import Looks, stack_urls
from baton.cli.top.readings import Reading, Window
from baton.cli.top.view import tables
from baton.errors import BatonError
from baton.local.ports import free_port
from baton.local.run_folder import RunFile, new_run_folder, write_run_file
from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics, family, histogram_family
from baton.types import Distribution


def worker(at_s: float, hits: int = 0, misses: int = 0, steps: int = 0, sent: int = 0, age_s: float = 0.0) -> Reading:
    """A decode worker whose steps took 0.003 s and had 4 tokens of 2 requests."""
    metrics, role = Metrics(), ("decode",)
    empty = [0] * len(declared.STEP_TIME.buckets)
    blocks = {"free": 5, "cached": 2, "active": 3, "quarantined": 0}
    metrics.read_at_scrape(
        lambda: [
            family(declared.WORKER_INFO, [(("decode", "decode-7", "tiny"), 1)]),
            family(declared.KV_POOL_BLOCKS, [(role, 10)]),
            family(declared.KV_BLOCKS, [(("decode", state), value) for state, value in blocks.items()]),
            family(declared.ENGINE_REQUESTS, [(("decode", "running"), 6), (("decode", "waiting"), 1)]),
            family(declared.PREFIX_TOKENS, [(("decode", "hit"), hits), (("decode", "miss"), misses)]),
            family(declared.TRANSFER_BYTES, [(role, sent)]),
            family(declared.STATS_AGE, [(role, age_s)]),
            histogram_family(declared.STEP_TIME, {role: Distribution((steps, *empty), steps * 0.003)}),
            histogram_family(declared.STEP_BATCH_TOKENS, {role: Distribution((0, steps, *[0] * 10), steps * 4)}),
            histogram_family(declared.STEP_BATCH_REQUESTS, {role: Distribution((0, steps, *[0] * 9), steps * 2)}),
        ]
    )
    return Reading(generate_latest(metrics.registry).decode(), at_s)


def shown(windows: dict[str, Window | str]) -> str:
    written = io.StringIO()
    Console(file=written, width=200).print(tables(windows))
    return written.getvalue()


def row_of(window: Window) -> list[str]:
    lines = shown({"decode-7": window}).splitlines()
    return next(line for line in lines if line.startswith("decode-7")).split()


def test_rates_are_over_the_time_between_two_readings() -> None:
    before = worker(100.0, hits=100, misses=100, steps=10, sent=1_000_000)
    window = Window(before, worker(104.0, hits=130, misses=110, steps=30, sent=9_000_000))
    assert window.rate(declared.TRANSFER_BYTES) == 2_000_000
    assert window.mean(declared.STEP_TIME) == pytest.approx(0.003)
    row = row_of(window)
    assert row[:10] == ["decode-7", "decode", "6", "1", "0", "10", "3", "2", "5", "0"]
    assert row[10:] == ["3.0", "ms", "2.0", "20.0", "75%", "2.0", "MB/s", "no", "Redis"]


def test_what_a_first_reading_or_a_restart_cannot_tell_is_a_dash() -> None:
    now = worker(104.0, hits=1, misses=1, steps=1, sent=10)
    for before in (None, worker(100.0, hits=100, misses=100, steps=10, sent=1_000_000)):
        window = Window(before, now)
        assert window.rate(declared.TRANSFER_BYTES) is None
        assert row_of(window)[10:15] == ["-"] * 5


def test_a_silent_engine_and_an_away_redis_are_remarked_on() -> None:
    text = shown({"decode-7": Window(None, worker(0.0, age_s=42.0))})
    assert "engine silent for 42 s" in text
    assert "no Redis" in text


def test_a_process_that_does_not_answer_is_told() -> None:
    url = f"http://127.0.0.1:{free_port()}/metrics"
    assert f"gone does not answer at {url}" in shown(Looks().at({"gone": url}))


def test_the_running_stack_is_found_with_the_gateway_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    with pytest.raises(BatonError, match="no stack runs"):
        stack_urls()
    folder = new_run_folder()
    write_run_file(RunFile(int(folder.name.rpartition("-")[2]), "[::1]:80", "127.0.0.1:9", str(folder)))
    for name, port in (("decode-0", 7), ("gateway", 8), ("prefill-0", 9)):
        (folder / f"{name}.metrics-port").write_text(str(port))
    assert [*stack_urls().items()] == [
        ("gateway", "http://[::1]:8/metrics"),
        ("decode-0", "http://127.0.0.1:7/metrics"),
        ("prefill-0", "http://127.0.0.1:9/metrics"),
    ]


def test_an_impossible_interval_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", "--once", "--interval-s", "0"])
    assert caught.value.code == 1
    assert "got --interval-s 0.0, expected seconds above 0" in capsys.readouterr().err
