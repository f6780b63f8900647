"""What is computed from rows: latencies, goodput, misses, the client's verdict on itself, result lines, files."""

import asyncio
import json
import math
import time
from pathlib import Path

import pytest

from baton.bench.load.lag import ClientLag, LagMonitor, bottleneck
from baton.bench.load.options import LoadOptions
from baton.bench.percentiles import distribution
from baton.bench.result_lines import result_lines
from baton.bench.row_files import read_rows, write_jsonl
from baton.bench.rows import RequestRow
from baton.bench.slo import closest_miss, parse_slo
from baton.bench.summary import summarize
from baton.bench.workloads.options import WorkloadOptions
from baton.errors import BatonError


def row(number: int, arrivals_ms: list[float], end_s: float = 1.0, **fields: object) -> RequestRow:
    values = {"input_tokens": 10, "output_tokens": len(arrivals_ms), "scheduled_s": 0.0, "sent_s": 0.5} | fields
    return RequestRow(number, 0, 0, end_s=end_s, arrivals_ms=arrivals_ms, **values)  # type: ignore[arg-type]


FAST = row(0, [100.0, 110.0, 120.0, 150.0])
SLOW = row(1, [400.0, 410.0, 420.0], end_s=2.0, cached_tokens=5)
REFUSED = row(2, [], error="resource_exhausted", message="full")
CUT = row(3, [100.0], error="interrupted")


def test_a_rows_latencies() -> None:
    assert (FAST.ttft_ms, FAST.max_gap_ms, FAST.e2e_ms) == (100.0, 30.0, 500.0)
    assert FAST.tpot_ms == pytest.approx(50 / 3)
    assert FAST.gaps_ms == [10.0, 10.0, 30.0]
    assert row(0, [100.0, 160.0], output_tokens=7).tpot_ms == 10.0  # several tokens a message
    assert math.isnan(row(0, [100.0]).tpot_ms)
    assert math.isnan(REFUSED.ttft_ms)


def test_percentiles_are_values_that_were_measured() -> None:
    found = distribution([float(value) for value in range(1, 1001)])
    assert found == {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "mean": 500.5, "max": 1000}
    assert all(math.isnan(value) for value in distribution([]).values())


def test_a_summary_counts_complete_answers_alone() -> None:
    summary = summarize([FAST, SLOW, REFUSED, CUT], parse_slo("ttft=200ms"))
    assert (summary.num_sent, summary.num_complete, summary.num_unfinished) == (4, 2, 1)
    assert summary.errors == {"resource_exhausted": 1}
    assert summary.error_examples == {"resource_exhausted": "full"}
    assert (summary.span_s, summary.output_tok_s, summary.input_tok_s) == (2.0, 3.5, 10.0)
    assert summary.cached_share == 0.5
    assert summary.latencies_ms["itl"]["p50"] == 10.0
    assert (summary.goodput_req_s, summary.good_share) == (0.5, pytest.approx(1 / 3))


def test_a_summary_of_nothing_has_no_figures() -> None:
    summary = summarize([], parse_slo("ttft=1ms"))
    assert summary.num_sent == 0
    assert math.isnan(summary.output_tok_s)
    options = LoadOptions("grpc://h:1", "m", WorkloadOptions())
    assert result_lines(summary, options, None, "serve", {}, None) == []


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("ttft=100ms", True),
        ("ttft=99ms", False),
        ("gap=30ms,e2e=0.5s", True),
        ("gap=29.9ms", False),
        ("itl=30ms", True),
        ("itl=29ms", False),
        ("tpot=17000us", True),
        ("tpot=16ms", False),
    ],
)
def test_an_slo_is_met_when_all_its_limits_are_kept(text: str, met: bool) -> None:
    assert parse_slo(text).met(FAST) is met


def test_failures_meet_no_slo() -> None:
    assert not any(parse_slo("ttft=1000s").met(failed) for failed in (REFUSED, CUT))


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "ttft=-5ms", "ttft=0ms", "speed=5ms", "ttft=5ms,ttft=6ms"])
def test_a_malformed_slo_is_refused(text: str) -> None:
    with pytest.raises(BatonError, match="--slo"):
        parse_slo(text)


def test_an_slo_that_nothing_meets_says_how_close_the_best_came() -> None:
    slo = parse_slo("ttft=50ms,gap=60ms")
    said = closest_miss(slo, [SLOW, FAST, REFUSED])
    assert said == f"no request met the SLO {slo}; the best, 0.0, came to 2.00x: ttft 100.0 ms of 50 ms"
    assert closest_miss(parse_slo("ttft=1s"), [SLOW, FAST]) is None
    assert "none ended well" in (closest_miss(slo, [REFUSED]) or "")


def test_the_client_says_that_it_is_the_bottleneck() -> None:
    fine = ClientLag(0, 1.2, 30.0, 2.0, 30.0, 0.5)
    assert bottleneck([fine]) is None
    said = bottleneck([fine, ClientLag(1, 7.0, 8.0, 11.0, 12.0, 0.95)])
    assert said is not None
    assert "process 1: its event loop was 7.0 ms behind (p99), requests were sent 11.0 ms late (p99)" in said
    assert "95%" in said
    assert "process 0" not in said


async def test_a_stall_of_the_event_loop_counts_as_long_as_it_was() -> None:
    monitor = LagMonitor(0)
    monitor.start()
    await asyncio.sleep(0.02)
    time.sleep(0.3)  # noqa: ASYNC251  # the stall that is to be measured
    await asyncio.sleep(0.02)
    lag = monitor.stop([row(0, [1.0], sent_s=0.7, scheduled_s=0.5)])
    assert lag.loop_lag_max_ms > 280
    assert lag.loop_lag_p99_ms > 200  # one timer of a few was late, but for most of the time
    assert lag.lateness_p99_ms == pytest.approx(200)


def test_result_lines_say_what_was_varied_and_what_is_doubtful() -> None:
    slo = parse_slo("ttft=200ms")
    options = LoadOptions("grpc://h:1", "model", WorkloadOptions(input_tokens=10), "gamma", 3.0, 0.5)
    lines = result_lines(summarize([FAST, SLOW], slo), options, slo, "pd", {"mode": "apart"}, "slow client")
    found = {(line["metric"], line["params"].get("percentile")): line for line in lines}
    ttft = found["pd_ttft_ms", "p50"]
    assert (ttft["value"], ttft["unit"], ttft["model"], ttft["doubt"]) == (100.0, "ms", "model", "slow client")
    assert ttft["params"] == {
        "workload": "random",
        "arrivals": "gamma",
        "rate": 3.0,
        "burstiness": 0.5,
        "input": 10,
        "output": 128,
        "mode": "apart",
        "percentile": "p50",
    }
    assert found["goodput_req_s", None]["params"]["slo"] == "ttft=200ms"
    assert {"machine", "torch", "commit", "command", "date"} <= ttft.keys()


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [FAST, SLOW, REFUSED]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[2])["ttft_ms"] is None
    (tmp_path / "rows.jsonl").write_text('{"session": 1}\n')
    with pytest.raises(BatonError, match="line 1"):
        read_rows(tmp_path / "rows.jsonl")
