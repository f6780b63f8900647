"""The connector between processes and hosts: one-sided writes through NIXL over UCX.

UCX picks the path: shared memory or TCP between CPU pools, NVLink within a GPU host, RDMA across hosts. Between CPU
pools of one host the copy runs inside `post`, on the caller's thread (5 ms for 24 MB); elsewhere in the background.
"""

import itertools
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from baton.errors import BatonError, ErrorCode, invalid
from baton.types import KvEndpoint
from kv_transfer.base import KVReceiver, KVSender, Notification, PoolRegion, WriteDone
from kv_transfer.block_ids import check_write
from kv_transfer.endpoint import PoolMetadata, not_connected, read_endpoint, sender_closed, writes_in_flight
from kv_transfer.nixl_agent import NixlAgent
from kv_transfer.tether.listener import TetherListener, TetherOptions
from kv_transfer.tether.wire import TetherAddress
from kv_transfer.tether.writer import Tethers

logger = logging.getLogger(__name__)

_CONNECTOR = "nixl"
_Handle = TypeVar("_Handle", int, str)


class _Metadata(PoolMetadata, frozen=True, kw_only=True):
    agent_metadata: Annotated[bytes, msgspec.Meta(max_length=2**20)]  # opaque, with the agent's name; 451 bytes seen
    checksum: int  # crc32 of agent_metadata, so that no garbled bytes reach NIXL's parser
    address: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # NIXL takes ranges that wrap around 2**64
    memory: Literal["DRAM", "VRAM"]
    device_id: Annotated[int, msgspec.Meta(ge=0)]
    tether: TetherAddress


class _Peer(NamedTuple):
    agent_name: str
    prepared: int
    num_blocks: int


@dataclass(eq=False, slots=True)
class _Write:
    write_id: int
    peer_id: str
    posted_ns: int
    handle: int | None = None
    done: WriteDone | None = None


class NixlSender(KVSender):
    """Writes into the pools of `NixlReceiver`s. `Notification.sender` is `worker_name`.

    A write to a peer that hangs, but whose connection stands, stays in flight until the peer lives or dies.

    Raises:
        BatonError: FAILED_PRECONDITION when NIXL is not installed or cannot register the pool.
    """

    def __init__(self, region: PoolRegion, worker_name: str) -> None:
        self._region = region
        self._agent = NixlAgent(worker_name, region)
        self._prepared = self._agent.prepare(
            None, region.address, region.num_blocks, region.block_bytes, self._agent.memory, self._agent.device_id
        )
        self._peers: dict[str, _Peer] = {}
        self._tethers = Tethers()
        self._in_flight: list[_Write] = []
        self._write_ids = itertools.count()
        self._closed = False

    def connect(self, peer_id: str, endpoint: KvEndpoint) -> int:
        if self._closed:
            raise sender_closed()
        if peer_id not in self._peers:
            self._peers[peer_id] = self._prepare(peer_id, endpoint)
        return self._peers[peer_id].num_blocks

    def _prepare(self, peer_id: str, endpoint: KvEndpoint) -> _Peer:
        metadata = read_endpoint(peer_id, endpoint, _CONNECTOR, _Metadata, self._region.block_bytes)
        if zlib.crc32(metadata.agent_metadata) != metadata.checksum:
            raise invalid(f"kv endpoint: got garbled NIXL metadata from peer {peer_id}; reserve again")
        try:
            agent_name = self._agent.add_peer(metadata.agent_metadata)
        except self._agent.errors as error:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"kv endpoint: cannot reach peer {peer_id} ({error}); check that the worker lives, that this host can "
                "reach it, and that both have the same NIXL release",
            ) from error
        try:
            prepared = self._agent.prepare(
                agent_name,
                metadata.address,
                metadata.num_blocks,
                metadata.block_bytes,
                metadata.memory,
                metadata.device_id,
            )
        except self._agent.errors as error:
            self._agent.remove_peer(agent_name)
            raise invalid(
                f"kv endpoint: got {metadata.num_blocks} blocks at {metadata.address:#x} from peer {peer_id}, expected "
                f"a range that it registered with NIXL ({error}); reserve again"
            ) from error
        self._tethers.open(peer_id, metadata.tether)
        return _Peer(agent_name, prepared, metadata.num_blocks)

    def begin(self, peer_id: str, grant_id: str) -> bool:
        if peer_id not in self._peers:
            raise not_connected(peer_id)
        return self._tethers.begin(peer_id, grant_id)

    def end(self, peer_id: str, grant_id: str) -> None:
        self._tethers.end(peer_id, grant_id)

    def post(
        self, peer_id: str, src_blocks: Sequence[int], dst_blocks: Sequence[int], notification: bytes | None = None
    ) -> int:
        peer = self._peers.get(peer_id)
        if peer is None:
            raise not_connected(peer_id)
        blocks = check_write(src_blocks, dst_blocks, self._region.num_blocks, peer.num_blocks, notification)
        write = _Write(next(self._write_ids), peer_id, time.monotonic_ns())
        self._in_flight.append(write)
        try:
            write.handle = self._agent.make_write(self._prepared, peer.prepared, blocks, notification)
            if self._agent.start_write(write.handle):
                self._end(write, None)
        except self._agent.errors as error:
            self._end(write, f"write to peer {peer_id} failed: {error}")
        return write.write_id

    def poll(self) -> list[WriteDone]:
        self._tethers.poll()
        for write in self._in_flight:
            if write.handle is None:
                continue
            try:
                if self._agent.write_ended(write.handle):
                    self._end(write, None)
            except self._agent.errors as error:
                self._end(write, f"write to peer {write.peer_id} failed: {error}")
        ended = [write.done for write in self._in_flight if write.done is not None]
        self._in_flight = [write for write in self._in_flight if write.done is None]
        return ended

    def disconnect(self, peer_id: str) -> None:
        count = sum(write.peer_id == peer_id and write.done is None for write in self._in_flight)
        if count:
            raise writes_in_flight(peer_id, count)
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            self._give_back(self._agent.release_prepared, peer.prepared)
            self._give_back(self._agent.remove_peer, peer.agent_name)
            self._tethers.close(peer_id)  # last: it says that nothing is under way

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for write in self._in_flight:
            if write.done is None:
                self._end(write, "the sender was closed")
        for peer_id in list(self._peers):
            self.disconnect(peer_id)
        self._agent.release_prepared(self._prepared)
        self._agent.close()
        self._tethers.close_all()

    def _end(self, write: _Write, error: str | None) -> None:
        write.done = WriteDone(write.write_id, error, (time.monotonic_ns() - write.posted_ns) // 1000)
        handle, write.handle = write.handle, None
        if handle is not None:
            self._give_back(self._agent.release_write, handle)

    def _give_back(self, release: Callable[[_Handle], None], handle: _Handle) -> None:
        """Whatever NIXL says of a thing that is not needed any more is no reason to fail."""
        try:
            release(handle)
        except self._agent.errors as error:
            logger.warning("NIXL did not take %s(%s): %s", release.__name__, handle, error)


class NixlReceiver(KVReceiver):
    """Lets `NixlSender`s write into its pool.

    Raises:
        BatonError: FAILED_PRECONDITION when NIXL is not installed, cannot register the pool, or `tether` names no
            address of this machine.
    """

    def __init__(self, region: PoolRegion, worker_name: str, tether: TetherOptions | None = None) -> None:
        self._tether = TetherListener(tether or TetherOptions())
        self._agent = NixlAgent(worker_name, region)
        agent_metadata = self._agent.metadata()
        metadata = _Metadata(
            num_blocks=region.num_blocks,
            block_bytes=region.block_bytes,
            agent_metadata=agent_metadata,
            checksum=zlib.crc32(agent_metadata),
            address=region.address,
            memory=self._agent.memory,
            device_id=self._agent.device_id,
            tether=self._tether.address,
        )
        self._endpoint = KvEndpoint(_CONNECTOR, msgspec.msgpack.encode(metadata))
        self._closed = False

    def endpoint(self) -> KvEndpoint:
        return self._endpoint

    def writing(self, grant_id: str) -> bool:
        return self._tether.writing(grant_id)

    def poll(self) -> list[Notification]:
        self._tether.poll()
        return [] if self._closed else self._agent.notifications()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tether.close()
            self._agent.close()
