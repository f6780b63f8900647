"""Runs one schedule: workers, gateway, Redis, clients and what goes wrong, and then looks at what is left."""

import asyncio
import logging
import random
from typing import Any, NamedTuple
from unittest import mock

import grpc

from baton import faults
from baton.directory.followed import FollowedDirectory
from baton.errors import BatonError, ErrorCode
from baton.faults import Point, flip
from baton.telemetry.exposition import Metrics
from baton.types import Role, SamplingParams
from gateway.attempt import Finished, Tokens
from gateway.config import Limits, Slo
from gateway.metrics import GatewayMetrics
from gateway.orchestrator import Orchestrator
from gateway.pool import Pool
from gateway.request_trace import RequestTrace
from gateway.retry import RetryPolicy
from gateway.router import LongestPrefix
from gateway.run_group import RunGroup
from gateway.validate import ValidatedRequest
from kv_transfer.base import Notification
from kv_transfer.inproc import Fault, InprocNetwork, InprocWrite
from tests.simulation.clock import Clock, Stuck
from tests.simulation.model import FINGERPRINT, oracle
from tests.simulation.network import Channel, FaultBook, Network
from tests.simulation.redis import SimulatedRedis
from tests.simulation.schedule import Ask, Event, Happening, Schedule, worker_names
from tests.simulation.silence import SILENT
from tests.simulation.worker import LEASE, Killed, Worker

_ENDS_WITHIN_S = 150.0  # whatever goes wrong, by the virtual clock
_AT_REST_WITHIN_S = 60.0
_LIMITS = Limits(max_reserve_wait_s=10.0)
_ALLOWED = (ErrorCode.UNAVAILABLE, ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.DEADLINE_EXCEEDED)


class Outcome(NamedTuple):
    """What became of a run; the lists are empty when all is well."""

    wrong: list[str]  # tokens, ends
    leaked: list[str]  # what workers hold at rest
    lost: list[str]  # requests without an end
    ends: list[str]  # how each request ended

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.leaked or self.lost)


class _Gateway:
    """One life of the gateway."""

    def __init__(self, world: "World") -> None:
        self.channels: list[Channel] = []
        self.clients: set[asyncio.Task[Any] | None] = set()
        world.connecting = None
        self.directory = directory = FollowedDirectory("redis://simulated", FINGERPRINT)
        self.pool = Pool(directory, _LIMITS)
        router = LongestPrefix(self.pool, directory, FINGERPRINT, _LIMITS)
        self.orchestrator = Orchestrator(
            self.pool, router, _LIMITS, RetryPolicy(), GatewayMetrics(Metrics(), Slo(ttft_s=1.0, itl_s=1.0))
        )

    def kill(self) -> None:
        if self.pool._poll_task is not None:
            self.pool._poll_task.cancel()
        if self.directory.follower._task is not None:
            self.directory.follower._task.cancel()
        for channel in self.channels:
            channel.break_off()
        for task in (*self.orchestrator._tasks, *self.clients):
            if task is not None:
                task.cancel()


class World:
    """All that there is in one run; also what happens at the product's own points (`baton.faults`)."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.clock = Clock()
        self.book = FaultBook(schedule)
        self.network = Network(schedule.seed, self.book)
        self.kv = InprocNetwork()
        self.kv.choose_fault = self._write_fault
        self.kv.choose_bit = random.Random(schedule.seed + 2).randrange
        self.redis = SimulatedRedis(lambda: self.clock.now_s)
        self.connecting: Any = None  # the host whose connection to Redis is being made
        self.turning: Worker | None = None
        self.gateway: _Gateway | None = None
        self._random = random.Random(schedule.seed + 1)
        self.workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.outcome = Outcome([], [], [], [])
        self._ready_fault: Any = None

    def step_s(self) -> float:
        """How long a step takes."""
        return self._random.uniform(0.002, 0.02)

    def run(self) -> Outcome:
        """Everything, from start to rest."""
        random.seed(self.schedule.seed)
        loop = self.clock.make_loop()
        faults.install(self)
        patched = (
            mock.patch.object(grpc.aio, "insecure_channel", self._channel),
            mock.patch("baton.directory.reader.connect", self._connect),
            mock.patch("baton.directory.follower.connect", self._connect),
            mock.patch("baton.directory.registrar.connect", self._connect),
        )
        try:
            with self.clock.installed(), patched[0], patched[1], patched[2], patched[3]:
                asyncio.set_event_loop(loop)
                loop.run_until_complete(self._main())
        except Stuck:
            self.outcome.lost.append("everybody waits, and nothing is due")
        finally:
            faults.install(None)
            asyncio.set_event_loop(None)
            with self.clock.installed():
                _drop(loop)
        return self.outcome

    def _connect(self, url: str) -> Any:
        host = self.connecting

        async def may_run() -> None:
            if host is not None:
                await host.wait()

        return self.redis.client(may_run)

    def _channel(self, address: str, options: Any = None) -> Channel:
        channel = self.network.channel(address)
        assert self._new_gateway is not None
        self._new_gateway.channels.append(channel)
        return channel

    async def _main(self) -> None:
        schedule = self.schedule
        names = worker_names(schedule.prefill, schedule.decode)
        skews = (*schedule.skews_s, *([0.0] * len(names)))
        for name, skew_s in zip(names, skews, strict=False):
            is_prefill = name.startswith("prefill")
            role, blocks = (
                (Role.PREFILL, schedule.prefill_blocks) if is_prefill else (Role.DECODE, schedule.decode_blocks)
            )
            self.workers[name] = Worker(self, name, role, blocks, skew_s)
            await self.workers[name].start()
        await self._start_gateway()
        for event in schedule.events:
            self._at(event.at_s, self._happen, event)
        clients = [asyncio.create_task(self._client(index, ask)) for index, ask in enumerate(schedule.asks)]
        await asyncio.wait(clients, timeout=_ENDS_WITHIN_S)
        for index, client in enumerate(clients):
            if not client.done():
                self.outcome.lost.append(f"request {index} has no end after {_ENDS_WITHIN_S:g} s")
                client.cancel()
            elif error := client.exception():
                self.outcome.wrong.append(f"request {index}: {error!r}")
        await self._rest()

    async def _start_gateway(self) -> None:
        self._new_gateway = _Gateway(self)
        await self._new_gateway.pool.start()
        self.gateway = self._new_gateway

    def _at(self, delay_s: float, what: Any, *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, what, *args)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _happen(self, event: Event) -> None:
        match event.what:
            case Happening.KILL:
                self._kill(self.workers[event.target], event.seconds)
            case Happening.STOP:
                self._stop(self.workers[event.target], event.seconds)
            case Happening.MOVE:
                if self.workers[event.target].alive:
                    self.workers[event.target].engine.ask_to_move()
            case Happening.DRAIN:
                self.workers[event.target].drain()
                self._at(event.seconds, self._kill, self.workers[event.target], 0.2)
            case Happening.GATEWAY_KILL:
                if self.gateway is not None:
                    self.gateway.kill()
                    self.gateway = None
                    self._at(0.2, lambda: self._start(self._start_gateway()))
            case Happening.REDIS_DOWN:
                self.redis.up = False
                self._at(event.seconds, setattr, self.redis, "up", True)
            case Happening.REDIS_FLUSH:
                self.redis.flush()

    def _kill(self, worker: Worker, restart_after_s: float) -> None:
        if worker.alive:
            worker.kill()
            self._at(restart_after_s, lambda: self._start(worker.start()))

    def _stop(self, worker: Worker, seconds: float) -> None:
        worker.stop()
        self._at(seconds, worker.go_on)

    def _write_fault(self, write: InprocWrite) -> Fault | None:
        fault = self.book.reach("kv.write")
        if fault is None:
            return None
        if fault.action == Fault.LATE:
            self._at(min(fault.seconds, LEASE.longest_write_s), self.kv.release_late)
        elif fault.action == Fault.HOLD:
            self._at(fault.seconds, self.kv.release_held)
        return Fault(fault.action)

    def reach(self, point: Point) -> None:
        """For `baton.faults`."""
        fault = self._ready_fault = self.book.reach(point.value)
        if fault is None or self.turning is None:
            return
        if fault.action == "kill":
            self._kill(self.turning, fault.seconds)
            raise Killed
        if fault.action == "stop":  # behind this turn of the core: what it posts now lands when it goes on
            self._stop(self.turning, fault.seconds)

    def messages(self, point: Point, payload: bytes) -> list[bytes]:
        """For `baton.faults`: a KvReady."""
        fault, worker = self._ready_fault, self.turning
        if fault is None or worker is None:
            return [payload]
        if fault.action == "duplicate":
            return [payload] * 2
        if fault.action == "corrupt":
            return [flip(payload, self._random.randrange(8 * len(payload)))]
        if fault.action == "later":
            self._at(fault.seconds, worker.receiver._arrived.append, Notification("prefill", payload))
        return []

    async def _client(self, index: int, ask: Ask) -> None:
        await asyncio.sleep(ask.at_s)
        gateway = self.gateway
        if gateway is None:
            self.outcome.ends.append("refused")
            return
        sampling = SamplingParams(
            temperature=1.0, seed=ask.seed, max_tokens=ask.max_tokens, stop_token_ids=ask.stop_token_ids
        )
        request = ValidatedRequest(f"r{index}", list(ask.prompt), sampling, 0, (), False)
        gateway.clients.add(asyncio.current_task())
        run = gateway.orchestrator.start(request, ask.deadline_s, RequestTrace(SILENT, None))
        tokens: list[int] = []
        try:
            async with asyncio.timeout(ask.deadline_s):
                end = await self._read(run, ask, tokens)
        except TimeoutError:
            end = "deadline"
        except asyncio.CancelledError:
            if gateway is self.gateway:
                raise
            end = "gateway died"
        except BatonError as error:
            end = f"failed: {error.code.value}"
            poison = error.code is ErrorCode.INTERNAL and "died while they computed" in error.message
            if error.code not in _ALLOWED and not poison:
                self.outcome.wrong.append(f"request {index} failed with {error.code.value}: {error.message}")
        finally:
            run.cancel()
        self.outcome.ends.append(end)
        expected, reason = oracle(ask.prompt, sampling)
        if tokens != expected[: len(tokens)]:
            self.outcome.wrong.append(f"request {index}: got {tokens}, expected {expected}")
        if end.startswith("finished") and (tokens != expected or end != f"finished: {reason.value}"):
            self.outcome.wrong.append(f"request {index}: {end} with {tokens}, expected {expected}, {reason.value}")

    async def _read(self, run: RunGroup, ask: Ask, tokens: list[int]) -> str:
        if ask.leaves_after == 0:
            await asyncio.sleep(self._random.uniform(0, 0.05))
            return "left"
        async for _, event in run:
            if isinstance(event, Tokens):
                tokens += event.token_ids
                if ask.leaves_after is not None and len(tokens) >= ask.leaves_after:
                    return "left"
                if ask.stops_after is not None and len(tokens) >= ask.stops_after:
                    await run.stop(0)
                    return "stopped"
            elif isinstance(event, Finished):
                return f"finished: {event.reason.value}"
        raise AssertionError("a run ended without an end")

    async def _rest(self) -> None:
        """Everything works again: nothing may be left of the requests."""
        self.redis.up = True
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _AT_REST_WITHIN_S
        pause_s = 0.05
        while problems := self._problems():
            if loop.time() >= give_up_at:
                self.outcome.leaked.extend(problems)
                break
            for worker in self.workers.values():
                worker.go_on()
                if worker.alive:
                    worker.wake()
            self.kv.release_held()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _problems(self) -> list[str]:
        found = [problem for worker in self.workers.values() if worker.alive for problem in worker.problems()]
        if any(self.kv._begun.values()):
            found.append(f"tethers: {self.kv._begun}")
        if self.gateway is not None:
            found += [f"gateway: {task}" for task in self.gateway.orchestrator._tasks]
            pool = self.gateway.pool
            found += [f"gateway: {w.name} in flight" for role in Role for w in pool.workers(role) if w.in_flight]
        return found


def _drop(loop: asyncio.AbstractEventLoop) -> None:
    """Ends what still runs."""
    for _ in range(5):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        try:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        except Stuck:
            break
    loop.close()


def simulate(schedule: Schedule) -> Outcome:
    """What becomes of a schedule; the same each time."""
    logging.disable(logging.CRITICAL)
    try:
        return World(schedule).run()
    finally:
        logging.disable(logging.NOTSET)
