"""Hosts, channels and the time that messages take: gRPC between the gateway and workers in one process.

As gRPC does, a call keeps the order of its messages and ends once. What it does not do to a message is not done here: a
lost or late message is a connection that hangs or breaks, and only a request of one answer can arrive twice.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from tests.simulation.call import Call, StreamCall, rpc_error
from tests.simulation.schedule import PointFault, Schedule

_HEALTH = "/grpc.health.v1.Health/Check"


class FaultBook:
    """Counts how often each point is reached, and says what is to go wrong there."""

    def __init__(self, schedule: Schedule) -> None:
        self._due = {(fault.point, fault.nth): fault for fault in schedule.faults}
        self._reached: Counter[str] = Counter()
        self._points = {fault.point for fault in schedule.faults}

    def reach(self, point: str) -> PointFault | None:
        if point not in self._points:
            return None
        self._reached[point] += 1
        return self._due.get((point, self._reached[point]))


class Host(asyncio.Event):
    """What the network knows of a process at an address; set while it is not stopped."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        super().__init__()
        self.handlers = handlers
        self.alive = True
        self.calls: set[Call] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.unreachable = False  # stopped for so long that connections were given up
        self.set()

    def die(self) -> None:
        """Its connections break; nothing in it runs any more."""
        self.alive = False
        for task in self.tasks:
            task.cancel()
        for call in list(self.calls):
            call.fail(rpc_error(grpc.StatusCode.UNAVAILABLE, "Socket closed"))

    def give_up_connections(self) -> None:
        """It has not answered for too long."""
        if self.alive and not self.is_set():
            self.unreachable = True
            for call in list(self.calls):
                call.fail(rpc_error(grpc.StatusCode.UNAVAILABLE, "ping timeout"))


class Network:
    """All hosts by address, and the time that messages take."""

    def __init__(self, seed: int, book: FaultBook) -> None:
        self.hosts: dict[str, Host] = {}
        self.book = book
        self._random = random.Random(seed)

    def latency_s(self) -> float:
        return self._random.uniform(0.0002, 0.004)

    def host(self, address: str) -> Host | None:
        """Who can be connected to there."""
        host = self.hosts.get(address)
        return host if host and host.alive and not host.unreachable else None

    def channel(self, address: str, options: Any = None) -> "Channel":
        """In the place of `grpc.aio.insecure_channel`."""
        return Channel(self, address)


class Channel:
    """One of the gateway's connections; `closed` breaks all that runs over it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._calls: list[Call] = []

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        host = self._network.host(self._address)
        return grpc.ChannelConnectivity.READY if host else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def _call(self, path: str, payload: bytes, timeout: float | None) -> Call:
        call = Call(self._network, self._network.host(self._address), path, timeout)
        self._calls.append(call)
        call.send_request(payload)
        return call

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        if path == _HEALTH:
            return self._check

        async def invoke(request: Any, timeout: float | None = None, metadata: Any = None) -> Any:  # noqa: ASYNC109
            payload = await self._call(path, request_serializer(request), timeout).next()
            assert payload is not None
            return response_deserializer(payload)

        return invoke

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def invoke(request: Any, timeout: float | None = None, metadata: Any = None) -> StreamCall:
            return StreamCall(self._call(path, request_serializer(request), timeout), response_deserializer)

        return invoke

    def stream_stream(self, *_: Any, **__: Any) -> None:
        return

    async def _check(self, request: Any, timeout: float) -> health_pb2.HealthCheckResponse:  # noqa: ASYNC109
        await asyncio.sleep(self._network.latency_s())
        host = self._network.host(self._address)
        if host is None:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "Connection refused")
        if not host.is_set():
            await asyncio.sleep(timeout)
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def close(self, grace: float | None) -> None:
        for call in self._calls:
            call.cancel()

    def break_off(self) -> None:
        """The gateway's process is gone."""
        for call in self._calls:
            call.fail(rpc_error(grpc.StatusCode.UNAVAILABLE, "the gateway is dead"))
