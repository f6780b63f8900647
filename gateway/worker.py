"""One life of one worker as the gateway sees it: its channel, its load, and whether it could be reached lately."""

import time

import grpc

from baton.directory.base import WorkerRecord
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import worker_pb2_grpc
from baton.types import WorkerRef

_OPTIONS: tuple[tuple[str, int], ...] = (
    *CHANNEL_OPTIONS,
    # A worker that comes back is used within seconds; a new incarnation shares no connection state with the old one.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Worker:
    """Made by the pool, on the event loop; connects at once."""

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.in_flight = 0  # requests of this gateway, clean-up included
        self._channel = grpc.aio.insecure_channel(record.address, options=_OPTIONS)
        self._channel.get_state(try_to_connect=True)
        self._avoid_until = 0.0
        self._failed_while_connected = False
        self.prefill = worker_pb2_grpc.PrefillWorkerStub(self._channel)
        self.decode = worker_pb2_grpc.DecodeWorkerStub(self._channel)

    @property
    def ref(self) -> WorkerRef:
        """Name and incarnation."""
        return self.record.worker

    @property
    def name(self) -> str:
        """The name alone, for messages."""
        return self.record.worker.name

    @property
    def avoided(self) -> bool:
        """Whether a call failed a moment ago and the connection has not come back since."""
        if time.monotonic() >= self._avoid_until:
            return False
        connected = self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
        return self._failed_while_connected or not connected

    def avoid(self, seconds: float) -> None:
        """A call could not reach the worker, or the worker was shutting down."""
        self._avoid_until = time.monotonic() + seconds
        state = self._channel.get_state(try_to_connect=True)
        self._failed_while_connected = state is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """Cancels what still runs on the channel."""
        await self._channel.close(None)
