"""The one place where the simulator meets the gateway's routing: policies by name, over simulated workers."""

from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar, cast

from baton.directory.base import WorkerRecord
from baton.errors import invalid
from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.pool import Pool
from gateway.router import Apart, Decision, Local, PolicyRouter
from gateway.routing.base import Policy
from gateway.routing.registry import make_policy
from gateway.worker import Worker
from gateway.worker_directory import WorkerDirectory
from simulator.cluster import ClusterOptions
from simulator.core import Core
from simulator.directory import Directory

T = TypeVar("T")


class SimulatedWorker:
    """What routing sees of a worker: stands for `gateway.worker.Worker`."""

    def __init__(self, core: Core, role: Role, num_blocks: int) -> None:
        self.core = core
        config = core.context.config
        self.record = WorkerRecord(
            worker=config.worker,
            role=role,
            address="",
            model="simulated",
            model_fingerprint="simulated",
            block_size=config.cache.block_size,
            max_model_len=core.context.max_model_len,
            num_blocks=num_blocks,
        )
        self.ref = config.worker
        self.name = config.worker.name
        self.in_flight = 0
        self.avoided = False  # out of reach

    @property
    def connected(self) -> bool:
        """Whether a call reaches it."""
        return not self.core.dead


class SimulatedPool:
    """Stands for `gateway.pool.Pool`: the registered workers by role, and how busy each is."""

    def __init__(self, workers: Sequence[SimulatedWorker]) -> None:
        self._by_role: dict[Role, list[SimulatedWorker]] = {role: [] for role in Role}
        for worker in workers:
            self._by_role[worker.record.role].append(worker)

    def workers(self, role: Role) -> list[SimulatedWorker]:
        """Always in the same order."""
        return self._by_role[role]

    def drop(self, worker: SimulatedWorker) -> None:
        """It is not registered any more."""
        self._by_role[worker.record.role].remove(worker)

    async def refresh(self) -> None:
        """Nothing to learn."""

    def recently_gone(self) -> list[Any]:
        """Nobody asks."""
        return []

    def count_in(self, worker: SimulatedWorker) -> None:
        """A request goes to it."""
        worker.in_flight += 1

    def count_out(self, worker: SimulatedWorker) -> None:
        """The request is done with it."""
        worker.in_flight -= 1


class Routing:
    """The gateway's router with one of its policies; only the look-up is ours."""

    def __init__(self, policy: Policy, pool: SimulatedPool, directory: Directory, looks_up: bool = False) -> None:
        """`looks_up`: whether the policy heeds who owns which block."""

        class Router(PolicyRouter):
            async def _owned_blocks(self, token_ids: Sequence[int], workers: Sequence[Worker]) -> dict[WorkerRef, int]:
                found = directory.longest_prefixes(token_ids) if looks_up else {}
                return {directory.workers[number]: blocks for number, blocks in found.items()}

        self.looks_up = looks_up
        self._router = Router(cast(Pool, pool), cast(WorkerDirectory, None), "", Limits(), policy)

    def choose(self, keys: Sequence[Any], last_resort: Collection[WorkerRef]) -> Apart | Local:
        """`keys` of the prompt's full blocks. Raises BatonError when there is no worker."""
        decision: Decision = _at_once(self._router.decide(keys, last_resort))
        return decision.plan


# Not `cost`: it learns from claims, and `random` would need a seed.
POLICIES = ("prefix", "round_robin", "least_loaded")


def make_routing(options: ClusterOptions, pool: SimulatedPool, directory: Directory) -> Routing:
    """Raises:
    BatonError: INVALID_ARGUMENT for a name that is none of `POLICIES`.
    """
    if options.policy not in POLICIES:
        raise invalid(f"got --policy {options.policy}, expected {', '.join(POLICIES)}")
    return Routing(make_policy(options.policy), pool, directory, looks_up=options.policy == "prefix")


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    raise RuntimeError("routing waits for something that the simulator does not have")
