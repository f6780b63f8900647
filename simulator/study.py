"""Many simulations for one question: each case in a process, results in the order of the cases."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Sequence

import msgspec

from baton.bench.load.options import LoadOptions
from baton.bench.slo import Slo
from baton.bench.summary import Summary
from baton.bench.workloads.base import Workload
from baton.bench.workloads.options import make_workload
from baton.types import Role
from simulator.cluster import ClusterOptions, Failure
from simulator.content import ContentSource
from simulator.copies import Copies
from simulator.costs import Costs
from simulator.figures import summarize_records
from simulator.records import Record
from simulator.simulation import RoleUse, Simulation


class Case(msgspec.Struct, frozen=True):
    """One simulation."""

    cluster: ClusterOptions
    costs: Costs
    load: LoadOptions
    num_copies: int = 1
    failures: tuple[Failure, ...] = ()
    slo: Slo | None = None
    sent_s: tuple[float, float] = (0.0, float("inf"))  # requests that were sent in this time are summed up


class Result(msgspec.Struct, frozen=True):
    """What came of it."""

    summary: Summary
    uses: list[RoleUse]
    num_retries: int

    def ms(self, latency: str, percentile: str) -> float:
        """One of the summary's latencies."""
        return self.summary.latencies_ms[latency][percentile]

    @property
    def prefix_hit_share(self) -> float:
        """Of the tokens that workers which compute prompts looked up."""
        prefilling = [use for use in self.uses if use.role is not Role.DECODE]
        return prefilling[0].prefix_hit_share if prefilling else 0.0

    def busy(self, role: Role) -> float:
        """Share of the time; 0 without workers of the role."""
        return next((use.busy_share for use in self.uses if use.role is role), 0.0)


def workload_of(load: LoadOptions, num_copies: int) -> Workload:
    """With names in place of tokens."""
    source = ContentSource(load.workload.seed, load.workload.vocab_size)
    workload = make_workload(load.workload, source)
    return workload if num_copies == 1 else Copies(workload, source, num_copies)


def run_case(case: Case) -> Result:
    """In this process."""
    workload = workload_of(case.load, case.num_copies)
    simulation = Simulation(case.cluster, case.costs, case.load, workload, case.failures)
    low, high = case.sent_s
    records: list[Record] = [record for record in simulation.run() if low <= record.sent_s < high]
    summary = summarize_records(records, case.costs.messages.token_s, case.slo)
    return Result(summary, simulation.use(), simulation.gateway.num_retries)


def run_cases(cases: Sequence[Case], num_processes: int, on_done: Callable[[], None] = lambda: None) -> list[Result]:
    """All of them.

    Raises:
        BatonError: as `Simulation`.
    """
    if num_processes == 1:
        results = []
        for case in cases:
            results.append(run_case(case))
            on_done()
        return results
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        running = [pool.submit(run_case, case) for case in cases]
        for future in concurrent.futures.as_completed(running):
            future.result()
            on_done()
        return [future.result() for future in running]
