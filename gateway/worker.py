"""One life of one worker as the gateway sees it: its channel, its load, and whether it could be reached lately."""

import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.directory.base import WorkerRecord
from baton.grpc_util.channel import open_channel
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import worker_pb2_grpc
from baton.tls import Tls
from baton.types import WorkerRef


class Worker:
    """Made by the pool, on the event loop; connects at once."""

    def __init__(self, record: WorkerRecord, tls: Tls | None = None) -> None:
        self.record = record
        self.tls_generation = tls.generation if tls else 0  # of the certificates that the channel was made with
        self.in_flight = 0  # requests of this gateway, clean-up included
        self._channel = open_channel(record.address, tls, CHANNEL_OPTIONS)
        self._channel.get_state(try_to_connect=True)
        self._failed = False  # and not used since
        self._avoid_until = 0.0
        self._failed_while_connected = False
        self.prefill = worker_pb2_grpc.PrefillWorkerStub(self._channel)
        self.decode = worker_pb2_grpc.DecodeWorkerStub(self._channel)
        self.control = worker_pb2_grpc.WorkerControlStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    @property
    def ref(self) -> WorkerRef:
        """Name and incarnation."""
        return self.record.worker

    @property
    def name(self) -> str:
        """The name alone, for messages."""
        return self.record.worker.name

    @property
    def connected(self) -> bool:
        """Whether a call that begins now reaches it at once."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    @property
    def avoided(self) -> bool:
        """Whether it drains, or a call failed a moment ago, or at all where the connection has not come back since."""
        if self.record.draining:
            return True
        if not self._failed:
            return False
        recent = self._failed_while_connected and time.monotonic() < self._avoid_until
        self._failed = recent or not self.connected
        return self._failed

    def avoid(self, seconds: float) -> None:
        """A call could not reach the worker, or the worker was shutting down."""
        self._failed = True
        self._avoid_until = time.monotonic() + seconds
        self._failed_while_connected = self.connected

    async def serves(self, timeout_s: float) -> bool:
        """Whether it says so itself; False too when it does not answer in time."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Cancels what still runs on the channel."""
        await self._channel.close(None)
