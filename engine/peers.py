"""Which decode workers a prefill worker is connected to: one life of each, and none with a broken connection."""

import zlib
from collections.abc import Set

from baton.errors import BatonError, ErrorCode
from baton.types import KvEndpoint, WorkerRef
from kv_transfer.base import KVSender


class Peers:
    """Connects on a grant's arrival, and disconnects what no grant will name again, or what does not work.

    A worker's older life is left as soon as a grant names a newer one. A peer with a failed or hung write is lost: it
    takes no new hand-over until its last write has ended and it was disconnected, so the next one connects afresh.
    """

    def __init__(self, sender: KVSender) -> None:
        self._sender = sender
        self._endpoints: dict[str, KvEndpoint] = {}  # of connected peers, by peer id
        self._lives: dict[str, str] = {}  # worker name -> peer id of the life that the newest grant names
        self._replaced: set[str] = set()
        self._lost: set[str] = set()

    def connect(self, worker: WorkerRef, endpoint: KvEndpoint) -> tuple[str, int]:
        """The peer id of a worker and the number of its blocks.

        Raises:
            BatonError: UNAVAILABLE when the peer is lost, FAILED_PRECONDITION when it is connected by another endpoint,
                and whatever `KVSender.connect` raises.
        """
        peer_id = f"{worker.name}/{worker.incarnation}"
        if peer_id in self._lost:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"decode worker {worker.name}: a KV write to it has failed or hangs, and the connection waits for its "
                "last writes to end; send the request again",
            )
        if self._endpoints.get(peer_id, endpoint) != endpoint:
            raise _other_endpoint(worker, self._endpoints[peer_id], endpoint)
        num_blocks = self._sender.connect(peer_id, endpoint)
        self._endpoints[peer_id] = endpoint
        before = self._lives.get(worker.name, peer_id)
        if before != peer_id:
            self._replaced.add(before)
        self._replaced.discard(peer_id)
        self._lives[worker.name] = peer_id
        return peer_id, num_blocks

    def lose(self, peer_id: str) -> None:
        """A write to it has failed, or takes too long."""
        self._lost.add(peer_id)

    def is_lost(self, peer_id: str) -> bool:
        """Whether nothing more should be written to it."""
        return peer_id in self._lost

    @property
    def any_to_leave(self) -> bool:
        """Whether `leave_unused` could have something to do."""
        return bool(self._lost or self._replaced)

    def leave_unused(self, used: Set[str]) -> None:
        """Disconnects lost and replaced peers, except those that are `used`: by an open hand-over, or a write."""
        for peer_id in (self._lost | self._replaced) - used:
            self._sender.disconnect(peer_id)
            self._endpoints.pop(peer_id, None)
            self._lost.discard(peer_id)
            self._replaced.discard(peer_id)
            self._lives = {name: life for name, life in self._lives.items() if life != peer_id}


def _other_endpoint(worker: WorkerRef, known: KvEndpoint, got: KvEndpoint) -> BatonError:
    """An incarnation's endpoint never changes: somebody else's blocks would be written over."""
    return BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"decode worker {worker.name}, incarnation {worker.incarnation}: got a grant with the endpoint {_show(got)}, "
        f"expected {_show(known)}, by which this incarnation is connected; give every worker a --name of its own",
    )


def _show(endpoint: KvEndpoint) -> str:
    checksum = zlib.crc32(endpoint.metadata)
    return f"{endpoint.connector}:{len(endpoint.metadata)} bytes with crc32 {checksum:08x}"
