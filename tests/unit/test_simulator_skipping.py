"""Uneventful steps taken together give the plans, the times and the rows of the steps one by one."""

from collections.abc import Sequence

import msgspec
import pytest

from baton.bench.costs import CEILINGS
from baton.bench.load.options import LoadOptions
from baton.bench.provenance import ROOT
from baton.bench.workloads.options import make_workload
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec
from engine.config import CacheConfig, SchedulerConfig
from engine.step_log import StepWork
from simulator.cluster import ClusterOptions, Failure
from simulator.content import ContentSource
from simulator.core import Core, Step
from simulator.costs import Costs, StepCosts, TurnCosts, make_floor
from simulator.simulation import Simulation
from simulator.skipping import decode_seconds
from tests.unit.test_simulator import CLUSTER, COSTS, STEPS, load

FLOOR = make_floor(
    load_model_spec(ROOT / "benchmarks" / "models" / "llama8b", "llama8b", LoadFormat.DUMMY), CEILINGS["NVIDIA H200"]
)
TIGHT = SchedulerConfig(256, 16, growth_reserve_blocks=0)
AGGREGATED = {"num_prefill": 0, "num_decode": 0, "num_aggregated": 2}

Plan = tuple[str, float, float, tuple[tuple[object, int, bool], ...]]


def plans_of(
    cluster: ClusterOptions, costs: Costs, options: LoadOptions, failures: Sequence[Failure]
) -> tuple[list[Plan], bytes, int]:
    """All steps of decode workers, the rows, and the events that it took."""
    workload = make_workload(options.workload, ContentSource(0, 30_000))
    simulation = Simulation(cluster, costs, options, workload, failures)
    found: list[Plan] = []

    def note(core: Core, step: Step) -> None:
        sequences = tuple((item.request.key, item.num_tokens, item.sample) for item in step.plan.sequences)
        found.append((core.ref.name, round(step.start_s, 9), round(step.end_s, 9), sequences))

    for worker in simulation.workers:
        worker.core.on_step = note
    rows = [record.row(costs.messages.token_s) for record in simulation.run()]
    assert simulation.check_integrity() == []
    assert all(row.error is None for row in rows)
    told = [[round(ms, 6) for ms in row.arrivals_ms] for row in sorted(rows, key=lambda row: (row.session, row.turn))]
    return sorted(found), msgspec.json.encode(told), simulation.loop.num_events


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("cluster", "failures"),
    [
        ({}, ()),
        ({}, (Failure(0.8, 0.5),)),
        ({"cache": CacheConfig(block_size=64), "num_blocks": 100}, ()),
        (AGGREGATED, ()),
        ({**AGGREGATED, "num_aggregated": 1, "num_blocks": 60, "max_model_len": 900, "decode": TIGHT}, ()),
    ],
    ids=["apart", "deaths", "large blocks", "aggregated", "preempting"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_plans_and_rows_are_the_same(
    overlap: bool, cluster: dict[str, object], failures: Sequence[Failure], seed: int
) -> None:
    steps = msgspec.structs.replace(STEPS, floor=FLOOR)
    costs = msgspec.structs.replace(COSTS, overlap=overlap, decode=steps, decode_turn=TurnCosts(2e-4, 1e-5))
    options = load("multi-turn", requests=25, rate=12.0, seed=seed)
    found = []
    for skip in (False, True):
        sizes = msgspec.structs.replace(CLUSTER, **cluster, skip_uneventful=skip)
        found.append(plans_of(sizes, costs, options, failures))
    (plans, rows, events), (skipped_plans, skipped_rows, skipped_events) = found
    assert skipped_plans == plans
    assert skipped_rows == rows
    assert skipped_events < events


@pytest.mark.parametrize("floor", [None, FLOOR])
def test_steps_of_a_stretch_take_what_each_alone_would(floor: object) -> None:
    steps = StepCosts(1e-3, 1e-5, 1e-8, floor=floor)  # type: ignore[arg-type]
    for num_decodes, context in ((1, 100), (40, 40_000), (256, 1_000_000)):
        works = [StepWork(num_decodes, context + i * num_decodes, 0, 0.0, num_decodes) for i in range(50)]
        got = decode_seconds(steps, num_decodes, context, 50)
        assert got == pytest.approx([steps.seconds(work) for work in works])
