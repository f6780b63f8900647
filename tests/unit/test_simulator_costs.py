"""Costs: fitted factors, files, floors; and a summary that is the same with and without rows."""

import json
import math
from pathlib import Path

import msgspec
import pytest

from baton.bench.costs import CEILINGS
from baton.bench.provenance import ROOT
from baton.bench.slo import parse_slo
from baton.bench.summary import summarize
from baton.bench.workloads.options import WorkloadOptions, make_workload
from baton.errors import BatonError
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec
from engine.step_log import StepWork
from simulator.content import Content, ContentSource
from simulator.copies import Copies
from simulator.costs import LinkCosts, MessageCosts, StepCosts, make_floor, read_costs, write_costs
from simulator.figures import summarize_records
from simulator.fitting.from_results import costs_from_results
from simulator.fitting.nonnegative import fit
from tests.unit.test_simulator import COSTS, simulate

_MODEL = ROOT / "benchmarks" / "models" / "llama8b"
_LINES = [
    json.loads(line)
    for name in ("gpu_steps", "gpu_transfer")
    for line in (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()
]


def test_factors_that_made_the_values_are_found() -> None:
    features = [(1.0, float(n), float(n * c)) for n in (1, 4, 16, 64) for c in (100, 900)]
    found = fit(features, [2e-3 + 3e-5 * n + 4e-8 * nc for _, n, nc in features])
    assert found.factors == pytest.approx([2e-3, 3e-5, 4e-8])
    assert found.mean_error == pytest.approx(0, abs=1e-9)


def test_no_factor_is_negative() -> None:
    found = fit([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [3.0, 2.0, 1.0])
    assert min(found.factors) >= 0
    assert found.mean_error > 0.1
    with pytest.raises(BatonError, match="got 0 durations"):
        fit([], [])


def test_committed_steps_are_met() -> None:
    spec = load_model_spec(_MODEL, "llama8b", LoadFormat.DUMMY)
    costs = costs_from_results(_LINES, spec, "NVIDIA H200", LinkCosts(1e-4, 50e9), MessageCosts())
    for line in _LINES:
        params = line["params"]
        if line["model"] == "llama8b" and line["metric"] == "decode_step_ms":
            batch = params["batch"]
            work = StepWork(batch, batch * params["context"], 0, 0.0, batch)
        elif line["model"] == "llama8b" and line["metric"] == "prefill_ttft_ms":
            tokens = params["tokens"]
            work = StepWork(0, 0, tokens, tokens * (tokens + 1) / 2, 1)
        else:
            continue
        assert costs.decode.seconds(work) * 1e3 == pytest.approx(line["value"], rel=0.1)
    assert msgspec.structs.replace(costs, source="") == msgspec.structs.replace(
        read_costs(ROOT / "simulator" / "fitted" / "llama8b-h200.json"),
        source="",
        messages=MessageCosts(),
    )


def test_a_gpu_without_results_is_told() -> None:
    spec = load_model_spec(_MODEL, "llama8b", LoadFormat.DUMMY)
    with pytest.raises(BatonError, match="got 0 decode_step_ms and 0 prefill_ttft_ms of llama8b on other"):
        costs_from_results(_LINES, spec, "other", LinkCosts(1e-4, 50e9), MessageCosts())


def test_no_step_is_faster_than_the_device() -> None:
    floor = make_floor(load_model_spec(_MODEL, "llama8b", LoadFormat.DUMMY), CEILINGS["NVIDIA H200"])
    steps = StepCosts(1e-6, 0.0, 0.0, floor=floor)
    assert steps.seconds(StepWork(1, 100, 0, 0.0, 1)) == pytest.approx(
        floor.weight_bytes / floor.read_bytes_s, rel=0.01
    )
    many = steps.seconds(StepWork(0, 0, 8192, 8192 * 8193 / 2, 1))
    assert many > 8192 * floor.flop_per_token / floor.flop_s


def test_a_file_of_costs_comes_back(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", COSTS)
    assert read_costs(tmp_path / "costs.json") == COSTS
    (tmp_path / "bad.json").write_text('{"source": 3}')
    with pytest.raises(BatonError, match=r"--costs .*bad.json: got .*source"):
        read_costs(tmp_path / "bad.json")


def test_a_summary_needs_no_rows() -> None:
    rows, simulation = simulate()
    slo = parse_slo("ttft=60ms,itl=11ms")
    with_rows, without = summarize(rows, slo), summarize_records(simulation.load.records, COSTS.messages.token_s, slo)
    assert with_rows.good_share is not None
    assert 0 < with_rows.good_share < 1
    for name in msgspec.structs.fields(with_rows):
        got, expected = getattr(without, name.name), getattr(with_rows, name.name)
        if name.name == "latencies_ms":
            for latency, values in expected.items():
                assert got[latency] == pytest.approx(values, rel=2e-3 if latency == "itl" else 1e-9)
        elif isinstance(expected, float):
            assert got == pytest.approx(expected)
        else:
            assert got == expected


def test_copies_have_prompts_of_their_own_and_the_rate_of_all(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},{n + 1},1\n" for n in range(10)))
    source = ContentSource(0, 30_000)
    copies = Copies(make_workload(WorkloadOptions(kind="trace", trace=str(trace)), source), source, 4)
    times = [copies.session_arrival_s(number) for number in range(40)]
    assert copies.num_sessions == 40
    assert times == sorted(times)
    assert math.isclose(max(times), 9.5)
    names = set()
    for number in range(40):
        content = copies.session(number).turns[0].new_tokens
        assert isinstance(content, Content)
        names.add(content.runs[0][0])
    assert len(names) == 40
    with pytest.raises(BatonError, match="--copies 0"):
        Copies(copies, source, 0)
