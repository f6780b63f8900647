"""Simulated clusters: what must hold of every run, and times that can be told beforehand."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from baton.bench.load.options import LoadOptions
from baton.bench.rows import RequestRow
from baton.bench.workloads.options import WorkloadOptions, make_workload
from baton.errors import BatonError
from engine.config import CacheConfig, SchedulerConfig
from simulator.cluster import ClusterOptions, Failure
from simulator.content import ContentSource
from simulator.costs import Costs, LinkCosts, MessageCosts, StepCosts
from simulator.simulation import Simulation

STEPS = StepCosts(base_s=0.004, decode_s=5e-5, context_s=4e-8, prompt_base_s=0.002, prompt_s=2e-5, pair_s=1e-9)
COSTS = Costs(
    source="made up",
    prefill=STEPS,
    decode=STEPS,
    link=LinkCosts(latency_s=1e-4, bytes_s=1e9),
    messages=MessageCosts(client_s=1e-3, call_s=2e-4, token_s=5e-4),
    kv_bytes_per_token=1e4,
)
CLUSTER = ClusterOptions(
    num_prefill=2,
    num_decode=2,
    num_blocks=400,
    max_model_len=2048,
    prefill=SchedulerConfig(256, 16),
    decode=SchedulerConfig(256, 16),
)


def load(
    kind: str = "multi-turn", requests: int = 30, rate: float = 20.0, seed: int = 0, **more: object
) -> LoadOptions:
    workload = WorkloadOptions(
        kind=kind, seed=seed, input_tokens=200, output_tokens=30, length_spread=0.5, num_turns=3, think_s=0.2
    )
    options = LoadOptions("simulated", "model", workload, rate=rate, num_sessions=requests, seed=seed)
    return msgspec.structs.replace(options, **more)


def simulate(
    cluster: ClusterOptions = CLUSTER,
    options: LoadOptions | None = None,
    costs: Costs = COSTS,
    failures: Sequence[Failure] = (),
) -> tuple[list[RequestRow], Simulation]:
    options = options or load()
    workload = make_workload(options.workload, ContentSource(options.workload.seed, 30_000))
    simulation = Simulation(cluster, costs, options, workload, failures)
    rows = [record.row(costs.messages.token_s) for record in simulation.run()]
    assert simulation.check_integrity() == []
    return rows, simulation


def assert_at_rest(simulation: Simulation) -> None:
    """Everything that was asked for is over, so nobody holds a block."""
    for worker in simulation.workers:
        stats = worker.core.context.pool.stats()
        assert worker.core.dead or (stats.active, stats.quarantined) == (0, 0)
        assert worker.in_flight == 0


@pytest.mark.parametrize("policy", ["prefix", "round_robin"])
@pytest.mark.parametrize("overlap", [False, True])
def test_every_request_gets_its_tokens_in_order(policy: str, overlap: bool) -> None:
    costs = msgspec.structs.replace(COSTS, overlap=overlap)
    rows, simulation = simulate(msgspec.structs.replace(CLUSTER, policy=policy), costs=costs)
    assert len(rows) == 90
    for row in rows:
        assert row.error is None
        assert len(row.arrivals_ms) == row.output_tokens
        assert row.arrivals_ms == sorted(row.arrivals_ms)
        assert row.e2e_ms == pytest.approx(row.arrivals_ms[-1])
    assert_at_rest(simulation)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    encoded = [msgspec.json.encode(simulate(options=load(seed=seed))[0]) for seed in (0, 0, 1)]
    assert encoded[0] == encoded[1]
    assert encoded[0] != encoded[2]


def test_a_lone_request_takes_what_its_parts_take() -> None:
    options = load("random", requests=1, arrivals="fixed")
    (row,), _ = simulate(options=options)
    chunks = [256] * (row.input_tokens // 256) + [row.input_tokens % 256]
    done, prefill_s = 0, 0.0
    for chunk in chunks:
        prefill_s += max(0.004, 0.002 + 2e-5 * chunk + 1e-9 * chunk * (done + (chunk + 1) / 2))
        done += chunk
    messages = COSTS.messages
    # To the gateway, Reserve and its answer, Prefill; the steps; back.
    assert row.ttft_ms / 1e3 == pytest.approx(messages.client_s + 3 * messages.call_s + prefill_s + messages.token_s)
    step_s = [0.004 + 5e-5 + 4e-8 * (row.input_tokens + number) for number in range(1, row.output_tokens)]
    assert row.gaps_ms[1:] == pytest.approx([seconds * 1e3 for seconds in step_s[1:]])
    transfer_s = 1e-4 + -(-row.input_tokens // 16) * 16 * 1e4 / 1e9
    assert row.gaps_ms[0] / 1e3 == pytest.approx(transfer_s + step_s[0])


def test_prefixes_are_found_where_they_were_computed() -> None:
    options = load("shared-prefix", requests=60)
    hits = {}
    for policy in ("prefix", "round_robin"):
        rows, _ = simulate(msgspec.structs.replace(CLUSTER, policy=policy), options)
        hits[policy] = sum(row.cached_tokens or 0 for row in rows)
    assert hits["prefix"] > hits["round_robin"] > 0


def test_an_aggregated_cluster_serves_whole_requests() -> None:
    cluster = msgspec.structs.replace(CLUSTER, num_prefill=0, num_decode=0, num_aggregated=2)
    rows, simulation = simulate(cluster)
    assert all(row.error is None and len(row.arrivals_ms) == row.output_tokens for row in rows)
    assert simulation.network.num_writes == 0
    assert_at_rest(simulation)


def test_preempted_requests_get_all_tokens_too() -> None:
    scheduler = SchedulerConfig(256, 16, growth_reserve_blocks=0)
    sizes = {"num_prefill": 0, "num_decode": 0, "num_aggregated": 1, "num_blocks": 60, "max_model_len": 900}
    cluster = msgspec.structs.replace(CLUSTER, **sizes, decode=scheduler)
    rows, simulation = simulate(cluster, load("random", requests=40, rate=100.0))
    assert sum(worker.core.preemption.num_preemptions for worker in simulation.workers) > 0  # type: ignore[attr-defined]
    assert all(row.error is None and len(row.arrivals_ms) == row.output_tokens for row in rows)
    assert_at_rest(simulation)


def test_requests_of_dead_workers_go_on_elsewhere() -> None:
    rows, simulation = simulate(failures=[Failure(0.6, 0.5)])
    assert sum(worker.core.dead for worker in simulation.workers) == 2
    assert all(row.error is None and len(row.arrivals_ms) == row.output_tokens for row in rows)
    assert simulation.gateway.num_retries > 0
    assert_at_rest(simulation)


def test_without_workers_requests_fail_clearly() -> None:
    rows, _ = simulate(failures=[Failure(0.6, 1.0)])
    failed = [row for row in rows if row.error]
    assert failed
    assert {row.error for row in failed} == {"unavailable"}


def test_a_closed_load_keeps_so_many_under_way() -> None:
    options = load("random", requests=20, arrivals="closed", concurrency=4)
    rows, _ = simulate(options=options)
    moments = sorted([(row.sent_s, 1) for row in rows] + [(row.end_s, -1) for row in rows])
    under_way, most = 0, 0
    for _, change in moments:
        under_way += change
        most = max(most, under_way)
    assert len(rows) == 20
    assert most == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_blocks": 10}, "--num-blocks 10, expected at least 128"),
        ({"num_decode": 0}, "at least one worker of both"),
        ({"num_prefill": -1}, "--prefill -1"),
        ({"policy": "best"}, "--policy best"),
        ({"cache": CacheConfig(block_size=12)}, "--block-size: got 12"),
        ({"decode": SchedulerConfig(8, 16)}, "--max-num-batched-tokens: got 8"),
    ],
)
def test_impossible_clusters_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(BatonError, match=told):
        simulate(msgspec.structs.replace(CLUSTER, **change))


def test_a_simulator_imports_no_torch() -> None:
    code = "import sys, simulator.simulation; print([name for name in ('torch', 'redis') if name in sys.modules])"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(got.replace("'", '"')) == []


def test_the_trace_of_an_hour_is_replayed_at_its_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n1800,900,20\n3600,50,1\n")
    workload = WorkloadOptions(kind="trace", trace=str(trace))
    rows, _ = simulate(options=LoadOptions("simulated", "model", workload, arrivals="trace"))
    assert [(row.sent_s, row.output_tokens) for row in rows] == [(0, 5), (1800, 20), (3600, 1)]
