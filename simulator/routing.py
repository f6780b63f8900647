"""The one place where the simulator meets the gateway's routing: policies by name, over simulated workers."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from baton.directory.base import WorkerRecord
from baton.errors import BatonError, ErrorCode, invalid
from baton.types import Role, WorkerRef
from gateway.config import Limits
from gateway.pool import Pool
from gateway.router import Apart, Decision, Local, LongestPrefix
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


class Policy(Protocol):
    """Where a request goes."""

    looks_up: bool  # whether it wants to know who owns which block

    def choose(self, keys: Sequence[Any], last_resort: Collection[WorkerRef]) -> Apart | Local:
        """`keys` of the prompt's full blocks. Raises BatonError when there is no worker."""
        ...


class ProductPrefix:
    """`gateway.router.LongestPrefix`; only its look-up is ours."""

    looks_up = True

    def __init__(self, pool: SimulatedPool, directory: Directory) -> None:
        class Router(LongestPrefix):
            async def _owned_blocks(self, token_ids: Sequence[int], workers: Sequence[Worker]) -> dict[WorkerRef, int]:
                found = directory.longest_prefixes(token_ids)
                return {directory.workers[number]: blocks for number, blocks in found.items()}

        self._router = Router(cast(Pool, pool), cast(WorkerDirectory, None), "", Limits())

    def choose(self, keys: Sequence[Any], last_resort: Collection[WorkerRef]) -> Apart | Local:
        decision: Decision = _at_once(self._router.decide(keys, last_resort))
        return decision.plan


class InTurns:
    """One worker of each role after the other, those in trouble left out while there are others.

    The product has no such policy yet; it is the one that others are measured against.
    """

    looks_up = False

    def __init__(self, pool: SimulatedPool, directory: Directory) -> None:
        self._pool = pool
        self._next = dict.fromkeys(Role, 0)

    def choose(self, keys: Sequence[Any], last_resort: Collection[WorkerRef]) -> Apart | Local:
        if self._pool.workers(Role.PREFILL) and self._pool.workers(Role.DECODE):
            prefill, decode = (self._take(role, last_resort) for role in (Role.PREFILL, Role.DECODE))
            return Apart(cast(Worker, prefill), cast(Worker, decode), 0)
        return Local(cast(Worker, self._take(Role.AGGREGATED, last_resort)))

    def _take(self, role: Role, last_resort: Collection[WorkerRef]) -> SimulatedWorker:
        workers = self._pool.workers(role)
        if not workers:
            raise BatonError(ErrorCode.UNAVAILABLE, f"no {role.value} worker is left")
        for _ in range(len(workers)):
            number = self._next[role]
            self._next[role] = number + 1
            worker = workers[number % len(workers)]
            if not worker.avoided and worker.ref not in last_resort:
                break
        return worker


POLICIES: dict[str, Callable[[SimulatedPool, Directory], Policy]] = {"prefix": ProductPrefix, "round_robin": InTurns}


def make_policy(options: ClusterOptions, pool: SimulatedPool, directory: Directory) -> Policy:
    """Raises:
    BatonError: INVALID_ARGUMENT for a name that there is no policy of.
    """
    if options.policy not in POLICIES:
        raise invalid(f"got --policy {options.policy}, expected {', '.join(POLICIES)}")
    return POLICIES[options.policy](pool, directory)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    raise RuntimeError("routing waits for something that the simulator does not have")
