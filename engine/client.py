"""The service's handle on its engine core: starts it, sends commands in batches and deals its events out to streams."""

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from baton.errors import BatonError, ErrorCode, Reason, invalid
from baton.types import Grant, Role
from engine import wire
from engine.child import CORE_COMMAND, CoreProcess
from engine.config import EngineConfig
from engine.event_stream import AttemptKey, EventStream, MoveWanted
from engine.messages import (
    Abort,
    Aborted,
    AddLocal,
    AddPrefill,
    Admitted,
    CacheChanged,
    Command,
    Event,
    ExtendLease,
    Failed,
    GetStats,
    LeaseExtended,
    LeaseRenewed,
    Migrate,
    MigrateEnded,
    PrefixCacheReset,
    Ready,
    RenewLease,
    Reply,
    Reserve,
    ResetPrefixCache,
    Shutdown,
    StatsReply,
    Timeline,
)

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0
CLOSE_TIMEOUT_S = 5.0
_LAST_EVENTS_S = 1.0  # to read what an ended core has left in the socket
_READ_BYTES = 256 << 10


class EngineClient:
    """One engine core, from the asyncio loop that started it. Not for other threads.

    `on_cache_change`, when set, is called with the block hashes that the core's prefix
    cache has gained and those it has lost; it must not wait. So is `on_milestone`, with every
    `Admitted` and the event that ends an attempt.
    """

    def __init__(self, config: EngineConfig, process: CoreProcess, sock: socket.socket) -> None:
        """For `start` alone."""
        self.on_cache_change: Callable[[tuple[bytes, ...], tuple[bytes, ...]], None] | None = None
        self.on_milestone: Callable[[Event], None] | None = None
        self._worker_name = config.worker.name
        self._can_send = config.role is Role.DECODE  # so a request that it runs can go on elsewhere
        self._process = process
        self._sock = sock
        self._outgoing: list[Command] = []
        self._flush_wanted = asyncio.Event()
        self._streams: dict[AttemptKey, EventStream] = {}
        self._idle = asyncio.Event()  # whether no stream is open
        self._idle.set()
        self._abort_waiters: dict[AttemptKey, list[asyncio.Future[Aborted]]] = {}
        self._call_waiters: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[Ready] = loop.create_future()
        self._death: asyncio.Future[str] = loop.create_future()
        self._closing = False
        self._writer_task = loop.create_task(self._write(wire.encode_config(config)))
        self._reader_task = loop.create_task(self._read())
        self._watch_task = loop.create_task(self._watch())

    @classmethod
    async def start(cls, config: EngineConfig, command: Sequence[str] | None = None) -> "EngineClient":
        """Starts the core as a child process and waits until it is ready.

        `command` replaces `python -m engine.process`; `--fd N` is appended to it.

        Raises:
            BatonError: FAILED_PRECONDITION when the core ends, or says nothing for START_TIMEOUT_S, before it is ready.
        """
        process, sock = await CoreProcess.spawn(command or CORE_COMMAND)
        client = cls(config, process, sock)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                outcomes: list[asyncio.Future[Any]] = [client._started, client._death]
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            client._process.kill()
            await client.close()
            if isinstance(error, TimeoutError):
                raise _refused(config.worker.name, f"is not ready after {START_TIMEOUT_S:.0f} s") from error
            raise
        if not client._started.done():
            reason = client._death.result()
            await client.close()
            raise _refused(config.worker.name, f"did not start: it {reason}")
        return client

    @property
    def ready(self) -> Ready:
        """What the core said of itself when it had started."""
        return self._started.result()

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._process.pid

    def submit(self, command: AddLocal | AddPrefill | Reserve) -> EventStream:
        """Starts an attempt and returns its events.

        Raises:
            BatonError: INVALID_ARGUMENT when this (request id, epoch) is open, UNAVAILABLE when the core is dead.
        """
        self._check_alive()
        key = (command.request_id, command.epoch)
        if key in self._streams:
            raise invalid(f"request {key[0]!r} with epoch {key[1]} is running already; a new attempt needs a new epoch")
        self._streams[key] = stream = EventStream(key, self._can_send)
        self._idle.clear()
        self.send(command)
        return stream

    def send(self, command: Command) -> None:
        """Sends a command that needs no answer; nothing happens when the core is dead."""
        if not self._death.done():
            self._outgoing.append(command)
            self._flush_wanted.set()

    async def abort(self, request_id: str, epoch: int) -> Aborted:
        """Stops an attempt, known or not, and waits for the core's word on whether it is fenced.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        self._check_alive()
        waiter: asyncio.Future[Aborted] = asyncio.get_running_loop().create_future()
        self._abort_waiters.setdefault((request_id, epoch), []).append(waiter)
        self.send(Abort(request_id, epoch))
        return await waiter

    @property
    def num_open(self) -> int:
        """Attempts that have not ended: running, waiting, or with a KV write under way."""
        return len(self._streams)

    async def wait_idle(self) -> None:
        """Returns when no attempt is open, or when the core is dead."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """Aborts every open attempt; each ends once no KV write of it is under way."""
        for request_id, epoch in self._streams:
            self.send(Abort(request_id, epoch))

    async def stats(self, check: bool = False) -> StatsReply:
        """A snapshot of the core. With `check`, `problems` tells what its integrity check found.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        reply: StatsReply = await self._call(lambda call_id: GetStats(call_id, check))
        return reply

    async def renew_lease(self, grant_id: str) -> int | None:
        """The new end of an open grant's lease, in unix nanoseconds; None when no such grant is open.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        reply: LeaseRenewed = await self._call(lambda call_id: RenewLease(call_id, grant_id))
        return reply.lease_deadline_unix_ns

    async def extend_lease(self, request_id: str, epoch: int, deadline_unix_ns: int) -> bool:
        """Whether the attempt has anything to write still, and does so until then.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        reply: LeaseExtended = await self._call(
            lambda call_id: ExtendLease(call_id, request_id, epoch, deadline_unix_ns)
        )
        return reply.known

    async def migrate(self, request_id: str, epoch: int, grant: Grant, num_reserved_tokens: int) -> MigrateEnded:
        """Hands a running request on to the worker that gave `grant`, and tells how it went.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        reply: MigrateEnded = await self._call(
            lambda call_id: Migrate(call_id, request_id, epoch, grant, num_reserved_tokens)
        )
        return reply

    def ask_to_move(self, request_ids: Collection[str] = ()) -> int:
        """Asks whoever reads these requests' streams (none named: all) to have them go on elsewhere; how many."""
        asked = [
            stream
            for (request_id, _), stream in self._streams.items()
            if stream.movable and (not request_ids or request_id in request_ids)
        ]
        for stream in asked:
            stream.put(MoveWanted())
        return len(asked)

    async def reset_prefix_cache(self) -> int:
        """Drops cached blocks that nobody uses, and says how many.

        Raises:
            BatonError: UNAVAILABLE when the core dies before it answers.
        """
        reply: PrefixCacheReset = await self._call(ResetPrefixCache)
        return reply.num_blocks

    async def _call(self, make: Callable[[int], Command]) -> Any:
        self._check_alive()
        call_id = next(self._call_ids)
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._call_waiters[call_id] = waiter
        try:
            self.send(make(call_id))
            return await waiter
        finally:
            self._call_waiters.pop(call_id, None)

    @property
    def death(self) -> str | None:
        """How the core has ended; None while it lives."""
        return self._death.result() if self._death.done() else None

    async def wait_dead(self) -> str:
        """Waits for the core's end, wanted or not, and tells how it came."""
        return await asyncio.shield(self._death)

    async def close(self) -> None:
        """Shuts the core down, killing it after CLOSE_TIMEOUT_S; ends all open streams. Idempotent."""
        if not self._closing:
            self._closing = True
            self.send(Shutdown())
        done, _ = await asyncio.wait([self._reader_task], timeout=CLOSE_TIMEOUT_S)
        if not done:
            self._process.kill()
            await asyncio.wait([self._reader_task])

    def _check_alive(self) -> None:
        if self._closing or self._death.done():
            reason = self._death.result() if self._death.done() else "is shutting down"
            raise self._unavailable(reason)

    def _unavailable(self, reason: str) -> BatonError:
        message = f"engine core of worker {self._worker_name} {reason}; send the request to another worker"
        why = Reason.DRAINING if self._closing else Reason.ENGINE_DIED
        return BatonError(ErrorCode.UNAVAILABLE, message, reason=why)

    async def _write(self, first: bytes) -> None:
        """Sends what accumulated since the last turn of the loop, as one frame."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._sock, first)
            while True:
                await self._flush_wanted.wait()
                self._flush_wanted.clear()
                commands, self._outgoing = self._outgoing, []
                await loop.sock_sendall(self._sock, wire.encode_frame(commands))
        except (BrokenPipeError, ConnectionResetError):
            return  # the reader sees the end and tells everyone
        except Exception:
            logger.exception("sending to the engine core of worker %s failed", self._worker_name)
            self._process.kill()

    async def _watch(self) -> None:
        """Ends the reading when the core has ended but a process of its own still holds the socket open."""
        await self._process.ended()
        done, _ = await asyncio.wait([self._reader_task], timeout=_LAST_EVENTS_S)
        if not done and self._sock.fileno() >= 0:
            self._sock.shutdown(socket.SHUT_RDWR)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        buffer = wire.FrameBuffer()
        problem = ""
        try:
            while data := await loop.sock_recv(self._sock, _READ_BYTES):
                buffer.feed(data)
                for payload in buffer.frames():
                    for event in wire.decode_events(payload):
                        self._dispatch(event)
        except ConnectionResetError:
            pass  # an end like any other
        except ValueError as error:
            problem = f" after a malformed message ({error})"
            self._process.kill()
        except Exception:
            # A fault in a callback: without a reader no request can go on.
            logger.exception("reading from the engine core of worker %s failed", self._worker_name)
            problem = " because its service could not handle an event; the log has the details"
            self._process.kill()
        self._writer_task.cancel()
        self._sock.close()
        ending = await self._process.wait(CLOSE_TIMEOUT_S)
        self._end(f"{'was shut down' if self._closing else 'died'} {ending}{problem}")

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._started.set_result(event)
        elif isinstance(event, CacheChanged):
            if self.on_cache_change:
                self.on_cache_change(event.stored, event.removed)
        elif isinstance(event, Reply):
            call_waiter = self._call_waiters.pop(event.call_id, None)
            if call_waiter and not call_waiter.done():
                call_waiter.set_result(event)
        else:
            key = (event.request_id, event.epoch)
            if isinstance(event, Aborted):
                for waiter in self._abort_waiters.pop(key, ()):
                    if not waiter.done():
                        waiter.set_result(event)
            stream = self._streams.get(key)
            if stream is None:
                return
            ended = stream.put(event)
            if self.on_milestone and (ended or isinstance(event, Admitted)):
                self.on_milestone(event)
            if ended:
                del self._streams[key]
                if not self._streams:
                    self._idle.set()

    def _end(self, reason: str) -> None:
        """The core is gone: everybody who waits for it hears so."""
        self._death.set_result(reason)
        error = self._unavailable(reason)
        now = time.time_ns()
        streams, self._streams = self._streams, {}
        for request_id, epoch in streams:
            timeline = Timeline(queued_unix_ns=now, finished_unix_ns=now)
            streams[request_id, epoch].put(Failed(request_id, epoch, error.code, error.message, timeline, error.reason))
        waiters: list[asyncio.Future[Any]] = [*self._call_waiters.values()]
        waiters += itertools.chain.from_iterable(self._abort_waiters.values())
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._idle.set()
        self._call_waiters.clear()
        self._abort_waiters.clear()


def _refused(worker_name: str, problem: str) -> BatonError:
    return BatonError(ErrorCode.FAILED_PRECONDITION, f"engine core of worker {worker_name} {problem}")
