"""One gRPC call in one process: a real servicer's coroutine, messages that meet faults, and a client that waits."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc
from grpc_status import rpc_status

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.status import to_status

if TYPE_CHECKING:
    from tests.simulation.network import Host, Network

KEEPALIVE_S = 5.0  # after which a connection to a stopped process is given up


def rpc_error(code: grpc.StatusCode, details: str, trailing: Any = None) -> grpc.aio.AioRpcError:
    """An error of the transport, or of a server with `trailing` metadata."""
    metadata = grpc.aio.Metadata(*(trailing or ()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=details)


def _from_server(error: Exception) -> grpc.aio.AioRpcError:
    if not isinstance(error, BatonError):
        error = BatonError(ErrorCode.INTERNAL, f"internal error: {error!r}")
    status = rpc_status.to_status(to_status(error))
    return rpc_error(status.code, status.details, status.trailing_metadata)


class ServerContext:
    """The server's end of a call."""

    def __init__(self, on_metadata: Callable[[], None] = lambda: None) -> None:
        self._on_metadata = on_metadata
        self._callbacks: list[Callable[[Any], None]] = []
        self._done = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._on_metadata()

    def end(self) -> None:
        if not self._done:
            self._done = True
            for callback in self._callbacks:
                callback(self)


class Call:
    """One call: the client waits for what `_deliver` brings, the server's coroutine runs as a task of its host."""

    def __init__(self, network: "Network", host: "Host | None", path: str, timeout_s: float | None) -> None:
        self.network = network
        self.name = path.rpartition("/")[2]
        self._path = path
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._responses: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None
        self._over = False
        self._last_at = 0.0  # when the newest message of the server arrives
        self._server_task: asyncio.Task[Any] | None = None
        self._begun = asyncio.Event()  # as far as the client knows
        self._context = ServerContext(self._send_begun)
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            late = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._timer = self._loop.call_later(timeout_s, self.fail, late)
        if host is None:
            refused = rpc_error(grpc.StatusCode.UNAVAILABLE, "Connection refused")
            self._loop.call_later(network.latency_s(), self.fail, refused)
        else:
            host.calls.add(self)

    def send_request(self, payload: bytes) -> None:
        """On its way to the server, with whatever becomes of it."""
        if self._host is None:
            return
        fault = self.network.book.reach(f"{self.name}.request")
        delay_s = self.network.latency_s()
        if fault is not None:
            if fault.action == "break":
                self._loop.call_later(delay_s, self.fail, rpc_error(grpc.StatusCode.UNAVAILABLE, "Connection reset"))
                return
            if fault.action == "lose":
                self._loop.call_later(KEEPALIVE_S, self.fail, rpc_error(grpc.StatusCode.UNAVAILABLE, "ping timeout"))
                return
            if fault.action == "delay":
                delay_s += fault.seconds
            elif fault.action == "twice" and self._host.handlers[self._path].unary_unary:
                self._loop.call_later(delay_s + fault.seconds, self._serve_again, payload)
        self._loop.call_later(delay_s, self._serve, payload)

    def _serve(self, payload: bytes) -> None:
        if not self._over and self._host is not None and self._host.alive:
            self._server_task = self._start(self._run(payload))

    def _serve_again(self, payload: bytes) -> None:
        assert self._host is not None
        handler = self._host.handlers[self._path]

        async def run() -> None:
            try:
                await handler.unary_unary(handler.request_deserializer(payload), ServerContext())
            except BatonError:
                return  # nobody hears the second answer

        if self._host.alive:
            self._start(run())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        assert self._host is not None
        tasks = self._host.tasks
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _run(self, payload: bytes) -> None:
        host = self._host
        assert host is not None
        handler = host.handlers[self._path]
        try:
            await host.wait()
            if self._over:
                return
            request = handler.request_deserializer(payload)
            if handler.unary_unary:
                response = await handler.unary_unary(request, self._context)
                await self._answer(handler.response_serializer(response), "response")
            else:
                async for event in handler.unary_stream(request, self._context):
                    await self._answer(handler.response_serializer(event), event.WhichOneof("event"))
                await host.wait()
            self._from_server(None)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await host.wait()
            self._from_server(_from_server(error))
        finally:
            if host.alive:
                self._context.end()

    async def _answer(self, payload: bytes, kind: str) -> None:
        assert self._host is not None
        await self._host.wait()
        fault = self.network.book.reach(f"{self.name}.{kind}")
        at = self._loop.time() + self.network.latency_s()
        if fault is not None:
            if fault.action == "break":
                self._last_at = at + 1  # nothing comes through behind it
                self._loop.call_at(at, self.fail, rpc_error(grpc.StatusCode.UNAVAILABLE, "Connection reset"))
                return
            if fault.action == "lose":
                give_up = at + KEEPALIVE_S
                self._last_at = give_up + 1
                self._loop.call_at(give_up, self.fail, rpc_error(grpc.StatusCode.UNAVAILABLE, "ping timeout"))
                return
            at += fault.seconds
        self._last_at = max(self._last_at + 1e-6, at)
        self._loop.call_at(self._last_at, self._deliver, payload)

    def _from_server(self, error: BaseException | None) -> None:
        self._last_at = max(self._last_at + 1e-6, self._loop.time() + self.network.latency_s())
        self._loop.call_at(self._last_at, self._end, error)

    def _send_begun(self) -> None:
        self._last_at = max(self._last_at + 1e-6, self._loop.time() + self.network.latency_s())
        self._loop.call_at(self._last_at, self._begun.set)

    async def wait_begun(self) -> None:
        """Until the server's first word, or the end."""
        await self._begun.wait()
        if self._over and self._error is not None and not self._responses:
            raise self._error

    def _deliver(self, payload: bytes) -> None:
        self._begun.set()
        if not self._over:
            self._responses.append(payload)
            self._arrived.set()

    def _end(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        self._begun.set()
        self._arrived.set()
        if self._timer:
            self._timer.cancel()
        if self._host is not None:
            self._host.calls.discard(self)

    def fail(self, error: BaseException) -> None:
        """Ends the call for the client now, and for the server when it hears of it."""
        if self._over:
            return
        self._end(error)
        if self._host is not None and self._host.alive:
            self._loop.call_later(self.network.latency_s(), self._stop_server, self._host)

    def _stop_server(self, host: "Host") -> None:
        if self._server_task is not None and host.alive:
            self._start(self._cancel_when_running(host, self._server_task))

    async def _cancel_when_running(self, host: "Host", task: asyncio.Task[Any]) -> None:
        await host.wait()
        task.cancel()

    async def next(self) -> bytes | None:
        """The next response; None at the end."""
        while not self._responses:
            if self._over:
                if self._error is not None:
                    raise self._error
                return None
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._responses.popleft()

    def cancel(self) -> None:
        """The client has seen enough."""
        self.fail(asyncio.CancelledError())


class StreamCall:
    """A call with many answers, as the gateway sees it."""

    def __init__(self, call: Call, read: Callable[[bytes], Any]) -> None:
        self._call = call
        self._read = read

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        await self._call.wait_begun()
        return ()

    def __aiter__(self) -> "StreamCall":
        return self

    async def __anext__(self) -> Any:
        payload = await self._call.next()
        if payload is None:
            raise StopAsyncIteration
        return self._read(payload)

    def cancel(self) -> None:
        self._call.cancel()
