"""One simulated worker: the product's service and engine core, over a simulated model, in one life after the other."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from baton.block_hash import root_hash
from baton.directory.base import WorkerRecord
from baton.directory.registrar import WorkerRegistrar
from baton.rpc import worker_pb2_grpc
from baton.types import Role, WorkerRef
from baton.worker.admission import Admission
from decode_service.servicer import DecodeServicer
from engine.block_pool import BlockPool
from engine.client import EngineClient
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig
from engine.context import EngineContext
from engine.counts import EngineCounts
from engine.messages import Command, Event
from engine.process import EngineCore
from engine.roles.base import EngineRole
from engine.roles.decode import DecodeRole
from engine.roles.grammar_gate import GrammarGate
from engine.roles.prefill import PrefillRole
from engine.runner import ModelRunner
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.wire import CoreChannel
from kv_transfer.base import PoolRegion
from kv_transfer.inproc import InprocReceiver, InprocSender
from prefill_service.servicer import PrefillServicer
from tests.simulation.call import KEEPALIVE_S
from tests.simulation.model import BLOCK, FINGERPRINT, MAX_LEN, SPEC, SimulatedRunner
from tests.simulation.network import Host
from tests.simulation.silence import SILENT

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE = LeaseConfig(lease_s=3.0, longest_write_s=0.5, clock_margin_s=0.25)
STEPS = {
    overlap: SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8, growth_reserve_blocks=1, overlap_steps=overlap)
    for overlap in (False, True)
}
_PIPE_S = 0.0003  # between service and core
_SOONEST_S, _LATEST_S = 0.002, 0.1  # between looks at transfers, while nothing happens; less often each time


class Killed(BaseException):
    """The process is gone, wherever it was."""


class SimulatedContext(EngineContext):
    """Everything but the loading of a model."""

    def __init__(self, config: EngineConfig, num_blocks: int, send: Callable[[list[Event]], None]) -> None:
        self.config = config
        self.spec = SPEC
        self.max_model_len = MAX_LEN
        self.runner = cast(ModelRunner, SimulatedRunner(config, num_blocks))
        self.pool = BlockPool(num_blocks)
        self.blocks = RequestBlocks(self.pool, BLOCK)
        self.costs = PreemptionCosts(self.runner.layout.block_bytes)
        self.counts = EngineCounts()
        self.step_log = None
        self.with_grammar = None
        self._root_hash = root_hash(FINGERPRINT)
        self._send = send
        self._outbox = []


class SimulatedEngine(EngineClient):
    """The service's handle on a core in the same process: commands and events go through a worker's hands."""

    def __init__(self, name: str, role: Role, send: Callable[[Command], None]) -> None:
        self.on_cache_change = None
        self.on_milestone = None
        self._worker_name = name
        self._can_send = role is Role.DECODE
        self._idle = asyncio.Event()
        self._streams = {}
        self._abort_waiters = {}
        self._call_waiters = {}
        self._call_ids = itertools.count(1)
        self._death = asyncio.get_running_loop().create_future()
        self._closing = False
        self._send = send

    def send(self, command: Command) -> None:
        self._send(command)


class Worker:
    """A name and an address, and the process that has them now, if any."""

    def __init__(self, world: "World", name: str, role: Role, num_blocks: int, skew_s: float) -> None:
        self.name = name
        self.address = f"{name}:1"
        self.role = role
        self.engine_role: EngineRole
        self.engine: SimulatedEngine
        self.host = Host({})
        self.host.alive = False
        self._world = world
        self._num_blocks = num_blocks
        self._skew_s = skew_s
        self._lives = 0
        self._inbox: list[Command] = []
        self._events: deque[list[Event]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = _SOONEST_S
        self._registrar: WorkerRegistrar | None = None

    async def start(self) -> None:
        """A new life."""
        world = self._world
        self._lives += 1
        ref = WorkerRef(self.name, f"{self.name}-life-{self._lives}")
        cache = CacheConfig(BLOCK, None, swap_space_bytes=8 * 128)
        config = EngineConfig(
            "",
            self.role,
            ref,
            connector="inproc",
            max_model_len=MAX_LEN,
            cache=cache,
            scheduler=STEPS[world.schedule.overlap],
            lease=LEASE,
        )
        self._inbox, self._events = [], deque()
        context = SimulatedContext(config, self._num_blocks, self._emit)
        pool = context.runner.pool
        region = PoolRegion(pool.data_ptr(), pool.shape[0], context.runner.layout.block_bytes)
        self.admission = Admission(self.name)
        self.engine = SimulatedEngine(self.name, self.role, self._take)
        self.host = Host(self._handlers())
        self._senders: list[InprocSender] = []

        def open_sender() -> InprocSender:
            self._senders.append(InprocSender(region, self.name, world.kv))
            return self._senders[-1]

        if self.role is Role.PREFILL:
            self._inner: EngineRole = PrefillRole(context, open_sender())
        else:
            self.receiver = InprocReceiver(region, self.name, world.kv)
            self._inner = DecodeRole(context, self.receiver, open_sender)
        self.engine_role = GrammarGate(context, self._inner)
        self._core = EngineCore(cast(CoreChannel, None), context, self.engine_role)
        world.network.hosts[self.address] = self.host
        record = WorkerRecord(
            ref, self.role, self.address, "simulated", FINGERPRINT, BLOCK, MAX_LEN, self._num_blocks, "float32"
        )
        world.connecting = self.host
        self._registrar = registrar = WorkerRegistrar("redis://simulated", record)
        self.engine.on_cache_change = registrar.update_blocks
        await registrar.start()

    def _handlers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}

        class Collector:
            def add_generic_rpc_handlers(self, handlers: Any) -> None:
                return

            def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
                found.update({f"/{service}/{method}": handler for method, handler in handlers.items()})

        if self.role is Role.PREFILL:
            prefill = PrefillServicer(self.engine, SILENT, self.name, self.admission)
            worker_pb2_grpc.add_PrefillWorkerServicer_to_server(prefill, Collector())
        else:
            decode = DecodeServicer(self.engine, SILENT, self.name, self.admission)
            worker_pb2_grpc.add_DecodeWorkerServicer_to_server(decode, Collector())
        return found

    @property
    def alive(self) -> bool:
        return self.host.alive

    def wake(self, delay_s: float = _PIPE_S) -> None:
        """Has a turn of the core at that time at the latest."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._turn)

    def _take(self, command: Command) -> None:
        if self.alive:
            self._inbox.append(command)
            self.wake()

    def _emit(self, events: list[Event]) -> None:
        self._events.append(events)
        asyncio.get_running_loop().call_later(_PIPE_S, self._dispatch, self._events)

    def _dispatch(self, events: deque[list[Event]]) -> None:
        """To the service, which is stopped and dies with its core."""
        if self.alive and self.host.is_set() and events is self._events:
            while events:
                for event in events.popleft():
                    self.engine._dispatch(event)

    def _turn(self) -> None:
        self._timer = None
        if not self.alive or not self.host.is_set():
            return
        clock, self._world.turning = self._world.clock, self
        clock.skew_s = self._skew_s
        try:
            computed, busy = self._run_once()
        except Killed:
            computed = busy = False
        except Exception as error:  # would end a real core
            self._world.outcome.wrong.append(f"{self.name}: {error!r}")
            computed = busy = False
        finally:
            clock.skew_s = 0.0
            self._world.turning = None
        if computed:
            self._pause_s = _SOONEST_S
            self.wake(self._world.step_s())
        elif busy:
            self.wake(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LATEST_S)

    def _run_once(self) -> tuple[bool, bool]:
        """One turn of `EngineCore.run`: whether it computed, and whether it has to look again."""
        commands, self._inbox = self._inbox, []
        if commands:
            self._pause_s = _SOONEST_S
        for command in commands:
            self._core._handle(command)
        role = self.engine_role
        role.poll()
        role.context.flush()
        computed = role.step()
        role.context.flush()
        quarantined = role.context.pool.stats().quarantined if not computed else 0
        return computed, role.idle_s() < 0.1 or quarantined > 0

    def kill(self) -> None:
        """SIGKILL."""
        if not self.alive:
            return
        self.host.die()
        for sender in self._senders:
            sender.close()
        if self.role is Role.DECODE:
            self.receiver.close()
        if self._registrar is not None and self._registrar._task is not None:
            self._registrar._task.cancel()

    def drain(self) -> None:
        """Takes nothing new, and hands on what it runs."""
        if self.alive:
            self.admission.drain()
            self.engine.ask_to_move()

    def stop(self) -> None:
        """SIGSTOP."""
        if self.alive and self.host.is_set():
            self.host.clear()
            asyncio.get_running_loop().call_later(KEEPALIVE_S, self.host.give_up_connections)

    def go_on(self) -> None:
        """SIGCONT."""
        if self.alive and not self.host.is_set():
            self.host.set()
            self.host.unreachable = False
            self._dispatch(self._events)
            self.wake()

    def problems(self) -> list[str]:
        """What it holds or has lost; empty at rest."""
        found = self.engine_role.check_integrity()
        stats = self.engine_role.stats()
        blocks = stats.blocks
        held = blocks.active, blocks.quarantined, stats.grants, stats.running, stats.waiting, stats.swap_blocks_used
        if any(held):
            found.append(f"active, quarantined, grants, running, waiting, swapped: {held}")
        if blocks.free + blocks.cached != blocks.total:
            found.append(f"{blocks.free} free and {blocks.cached} cached of {blocks.total} blocks")
        if self.engine._streams:
            found.append(f"streams of {sorted(self.engine._streams)}")
        return [f"{self.name}: {problem}" for problem in found]
