"""One simulation: a cluster, its costs and a load, put together and run to the end."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

import msgspec

from baton.bench.load.options import LoadOptions
from baton.bench.workloads.base import Workload
from baton.types import Role
from simulator.cluster import ClusterOptions, Failure, check_cluster, engine_config, worker_counts
from simulator.core import Core, CoreContext
from simulator.costs import Costs
from simulator.decode_core import DecodeCore
from simulator.directory import Directory
from simulator.events import EventLoop
from simulator.gateway import Gateway
from simulator.load import Load
from simulator.network import Network
from simulator.prefill_core import PrefillCore
from simulator.records import Record
from simulator.routing import SimulatedPool, SimulatedWorker, make_routing


class RoleUse(msgspec.Struct, frozen=True):
    """How busy the workers of one role were."""

    role: Role
    num_workers: int
    num_steps: int
    busy_share: float  # of the simulated time
    prefix_hit_share: float  # of the tokens that were looked up


class Simulation:
    """Use once."""

    def __init__(
        self,
        cluster: ClusterOptions,
        costs: Costs,
        load: LoadOptions,
        workload: Workload,
        failures: Sequence[Failure] = (),
    ) -> None:
        """Raises:
        BatonError: INVALID_ARGUMENT for a cluster or a load that is none.
        """
        check_cluster(cluster)
        self.loop = EventLoop()
        self._cluster, self._costs = cluster, costs
        self.directory = Directory()
        self.network = Network(self.loop, costs.link)
        self.workers = [
            SimulatedWorker(self._core(role, number), role, cluster.num_blocks)
            for role, count in worker_counts(cluster).items()
            for number in range(count)
        ]
        self.pool = SimulatedPool(self.workers)
        routing = make_routing(cluster, self.pool, self.directory)
        self.directory.is_read = routing.looks_up
        self.gateway = Gateway(self.loop, self.pool, routing, costs.messages, cluster.block_size, cluster.seed)
        self.load = Load(self.loop, self.gateway, load, workload)
        for failure in failures:
            self.loop.at(failure.at_s, self._fail, failure.share)

    def _core(self, role: Role, number: int) -> Core:
        cluster, costs = self._cluster, self._costs
        config = engine_config(cluster, role, number)
        context = CoreContext(config, cluster.num_blocks, cluster.max_model_len, costs.kv_bytes_per_token)
        if role is Role.PREFILL:
            return PrefillCore(self.loop, context, self.directory, costs, self.network, cluster.seed)
        return DecodeCore(self.loop, context, self.directory, costs, cluster.skip_uneventful, cluster.seed)

    def _fail(self, share: float) -> None:
        for role in Role:
            alive = [worker for worker in self.pool.workers(role) if not worker.core.dead]
            for worker in self.gateway.random.sample(alive, round(share * len(alive))):
                self.gateway.worker_died(worker)

    def run(self, until_s: float = float("inf"), on_end: Callable[[Record], None] | None = None) -> list[Record]:
        """All requests, in the order of their ends."""
        if on_end:
            self.load.on_end = on_end
        with _without_collections():
            self.load.start()
            self.loop.run(until_s)
        return self.load.records

    def use(self) -> list[RoleUse]:
        """By role."""
        found = []
        for role in Role:
            cores = [worker.core for worker in self.workers if worker.record.role is role]
            if cores:
                blocks = [core.context.blocks for core in cores]
                hits, queries = (sum(getattr(b, f"num_{name}_tokens") for b in blocks) for name in ("hit", "query"))
                busy_s = sum(core.busy_s for core in cores)
                found.append(
                    RoleUse(
                        role=role,
                        num_workers=len(cores),
                        num_steps=sum(core.num_steps for core in cores),
                        busy_share=busy_s / (self.loop.now_s * len(cores)) if self.loop.now_s else 0.0,
                        prefix_hit_share=hits / queries if queries else 0.0,
                    )
                )
        return found

    def check_integrity(self) -> list[str]:
        """What is wrong with the blocks of workers that live; empty when all is well."""
        return [problem for worker in self.workers if not worker.core.dead for problem in worker.core.check_integrity()]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Requests leave no cycles behind, and each collection would look at millions of blocks and records."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
