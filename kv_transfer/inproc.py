"""The connector for a sender and a receiver in one process: plain memory copies, the test double of a remote one.

A write is queued by `post` and carried out by the sender's `poll`, so that a test can act in between.
"""

import ctypes
import itertools
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.errors import BatonError, ErrorCode
from baton.types import KvEndpoint
from kv_transfer.base import KVReceiver, KVSender, Notification, PoolRegion, WriteDone
from kv_transfer.block_ids import check_write
from kv_transfer.endpoint import PoolMetadata, not_connected, read_endpoint, sender_closed, writes_in_flight
from kv_transfer.inproc_network import Fault, InprocNetwork, InprocWrite, WriteOutcome

__all__ = ["Fault", "InprocNetwork", "InprocReceiver", "InprocSender", "InprocWrite"]

_CONNECTOR = "inproc"


class _Metadata(PoolMetadata, frozen=True, kw_only=True):
    receiver: str


class InprocSender(KVSender):
    """Writes into the pools of one network's receivers. `Notification.sender` is `worker_name`.

    Raises:
        BatonError: FAILED_PRECONDITION when the pool is not in host memory.
    """

    def __init__(self, region: PoolRegion, worker_name: str, network: InprocNetwork) -> None:
        self._pool = _host_view(region)
        self._worker_name = worker_name
        self._network = network
        self._peers: dict[str, _Metadata] = {}
        self._in_flight: list[InprocWrite] = []
        self._write_ids = itertools.count()
        self._closed = False

    def connect(self, peer_id: str, endpoint: KvEndpoint) -> int:
        if self._closed:
            raise sender_closed()
        if peer_id not in self._peers:
            self._peers[peer_id] = read_endpoint(peer_id, endpoint, _CONNECTOR, _Metadata, self._pool.shape[1])
        return self._peers[peer_id].num_blocks

    def begin(self, peer_id: str, grant_id: str) -> bool:
        peer = self._peers.get(peer_id)
        if peer is None:
            raise not_connected(peer_id)
        return self._network.begin(self, peer.receiver, grant_id)

    def end(self, peer_id: str, grant_id: str) -> None:
        if peer_id in self._peers:
            self._network.end(self, self._peers[peer_id].receiver, grant_id)

    def post(
        self, peer_id: str, src_blocks: Sequence[int], dst_blocks: Sequence[int], notification: bytes | None = None
    ) -> int:
        peer = self._peers.get(peer_id)
        if peer is None:
            raise not_connected(peer_id)
        blocks = check_write(src_blocks, dst_blocks, self._pool.shape[0], peer.num_blocks, notification)
        write = InprocWrite(
            write_id=next(self._write_ids),
            sender=self._worker_name,
            peer_id=peer_id,
            receiver=peer.receiver,
            pool=self._pool,
            blocks=blocks,
            notification=notification,
            posted_ns=time.monotonic_ns(),
        )
        self._in_flight.append(write)
        return write.write_id

    def poll(self) -> list[WriteDone]:
        ended: list[WriteDone] = []
        still_in_flight: list[InprocWrite] = []
        for write in self._in_flight:
            outcome = "the sender was closed" if self._closed else self._network.carry_out(write)
            if outcome is WriteOutcome.IN_FLIGHT:
                still_in_flight.append(write)
                continue
            error = outcome if isinstance(outcome, str) else None
            ended.append(WriteDone(write.write_id, error, (time.monotonic_ns() - write.posted_ns) // 1000))
        self._in_flight = still_in_flight
        return ended

    def disconnect(self, peer_id: str) -> None:
        count = sum(write.peer_id == peer_id for write in self._in_flight)
        if count:
            raise writes_in_flight(peer_id, count)
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            self._network.end_all(self, peer.receiver)

    def close(self) -> None:
        self._closed = True
        for peer in self._peers.values():
            self._network.end_all(self, peer.receiver)
        self._peers.clear()


class InprocReceiver(KVReceiver):
    """Lets the senders of one network write into its pool.

    Raises:
        BatonError: FAILED_PRECONDITION when the pool is not in host memory.
    """

    def __init__(self, region: PoolRegion, worker_name: str, network: InprocNetwork) -> None:
        self._arrived: list[Notification] = []
        self._network = network
        self._name = network.add_receiver(worker_name, _host_view(region), self._arrived)
        metadata = _Metadata(receiver=self._name, num_blocks=region.num_blocks, block_bytes=region.block_bytes)
        self._endpoint = KvEndpoint(_CONNECTOR, msgspec.msgpack.encode(metadata))

    def endpoint(self) -> KvEndpoint:
        return self._endpoint

    def writing(self, grant_id: str) -> bool:
        return self._network.writing(self._name, grant_id)

    def poll(self) -> list[Notification]:
        arrived = self._arrived.copy()
        self._arrived.clear()
        return arrived

    def close(self) -> None:
        self._network.remove_receiver(self._name)
        self._arrived.clear()


def _host_view(region: PoolRegion) -> NDArray[np.uint8]:
    """The pool's own memory as [blocks, bytes]; whoever made the region keeps it alive until `close`."""
    if region.device != "cpu":
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"kv connector inproc: got a pool on {region.device}, expected cpu; start with --connector nixl",
        )
    num_bytes = region.num_blocks * region.block_bytes
    memory = (ctypes.c_uint8 * num_bytes).from_address(region.address)
    return np.ctypeslib.as_array(memory).reshape(region.num_blocks, region.block_bytes)
