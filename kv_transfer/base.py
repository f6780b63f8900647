"""The KV-transfer seam: a sender in the prefill role, a receiver in the decode role.

Life cycle: a prefill worker makes one sender over its KV pool, a decode worker one receiver, and a sender beside it
when it hands a running request on. The receiver's `endpoint()` travels inside every grant; the sender connects to it
once per peer, prepares descriptor lists once and indexes into them for each write.
All methods are called from the engine core's one thread and must not block it: `post` starts a write, `poll` collects
what has ended. Implementations: `inproc` (both sides in one process, for tests) and `nixl`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from baton.types import KvEndpoint


class PoolRegion(NamedTuple):
    """A KV pool as the connector sees it: `num_blocks` ranges of `block_bytes`, one behind the other from `address`."""

    address: int
    num_blocks: int
    block_bytes: int
    device: str = "cpu"  # "cpu", "cuda:N", or "cuda" for "cuda:0"


class WriteDone(NamedTuple):
    """A write that has ended. `error` is None when all bytes are in place and the notification is on its way."""

    write_id: int
    error: str | None
    transfer_us: int  # from post to the poll that saw the end


class Notification(NamedTuple):
    """A message that arrived behind the data of the write that carried it."""

    sender: str
    payload: bytes


class KVSender(ABC):
    """Writes blocks of its own pool into granted blocks of peers' pools."""

    @abstractmethod
    def connect(self, peer_id: str, endpoint: KvEndpoint) -> int:
        """Learns a peer (worker name and incarnation joined) and prepares descriptor lists, unless it is known already.

        Returns:
            The number of blocks of the peer's pool: `post` to it takes destinations below that.

        Raises:
            BatonError: FAILED_PRECONDITION when the endpoint's connector or block size does not fit this one's,
                INVALID_ARGUMENT when it is garbled, UNAVAILABLE when the peer cannot be reached.
        """

    @abstractmethod
    def begin(self, peer_id: str, grant_id: str) -> bool:
        """Tells a connected peer that writes of a grant may be under way from now on; call it before each `post`.

        Returns:
            False while that is not yet on its way, because the connection is being made or the peer does not listen:
            post nothing then, and ask again after a `poll`.

        Raises:
            BatonError: UNAVAILABLE when the peer cannot be told (any more); what is in flight stays so.
        """

    @abstractmethod
    def end(self, peer_id: str, grant_id: str) -> None:
        """Tells the peer that no write of a grant is or will be under way. A no-op when none has begun."""

    @abstractmethod
    def post(
        self, peer_id: str, src_blocks: Sequence[int], dst_blocks: Sequence[int], notification: bytes | None = None
    ) -> int:
        """Starts copying whole blocks and returns a write id, unique in this sender; each ends in one `WriteDone`.

        `notification` reaches the peer's `poll` after the blocks of this write are visible there. It is not ordered
        behind other writes: wait for those first. The source blocks must stay unchanged until the write has ended.
        A dead peer shows up as a `WriteDone` with an error, not as an exception. A hung one may not show up at all.

        Raises:
            ValueError: the caller's mistake: a peer that is not connected, block ids that are not there.
        """

    @abstractmethod
    def poll(self) -> list[WriteDone]:
        """Writes that have ended since the last call, in the order they were posted; returns at once."""

    @abstractmethod
    def disconnect(self, peer_id: str) -> None:
        """Forgets a peer, dead or alive, and releases what was prepared for it. Ends all that `begin` has begun there.
        Idempotent.

        Raises:
            ValueError: a write to it is in flight.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases registrations and peers. Idempotent."""


class KVReceiver(ABC):
    """Lets peers write into its pool and hears of it."""

    @abstractmethod
    def endpoint(self) -> KvEndpoint:
        """What a sender needs to reach this pool; constant over the receiver's life."""

    @abstractmethod
    def writing(self, grant_id: str) -> bool:
        """Whether a write of a grant may be under way, as of the last `poll`: somebody has begun, has not ended, and
        exists. A process that is stopped exists; one that has died counts until what it had posted must have landed.
        """

    @abstractmethod
    def poll(self) -> list[Notification]:
        """Notifications that arrived since the last call; returns at once."""

    @abstractmethod
    def close(self) -> None:
        """Releases the registration. Idempotent."""
