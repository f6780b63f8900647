"""Where `inproc` senders find receivers, and where their writes go wrong on demand in the ways remote writes do."""

import enum
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kv_transfer.base import Notification
from kv_transfer.block_ids import BlockIds


class Fault(enum.StrEnum):
    """What can go wrong with one write."""

    FAIL = "fail"  # nothing lands; the sender sees an error
    TEAR = "tear"  # the first half of the blocks lands; the sender sees an error
    LATE = "late"  # the sender sees an error, and yet the blocks land, at `release_late`
    HOLD = "hold"  # in flight until `release_held`
    CORRUPT = "corrupt"  # lands with one bit wrong; the sender sees success
    LOSE_NOTIFICATION = "lose_notification"  # lands; the sender sees success, the receiver hears nothing
    REPEAT_NOTIFICATION = "repeat_notification"  # lands; the receiver hears of it twice


_ERRORS = {
    Fault.FAIL: "injected: the write failed",
    Fault.TEAR: "injected: the write broke off",
    Fault.LATE: "injected: the write failed, as far as this side can tell",
}
_TIMES_NOTIFIED = {Fault.LOSE_NOTIFICATION: 0, Fault.REPEAT_NOTIFICATION: 2}


@dataclass(eq=False, slots=True)
class InprocWrite:
    """One write on its way; the network's own notes come last."""

    write_id: int
    sender: str
    peer_id: str
    receiver: str
    pool: NDArray[np.uint8]  # the sender's [blocks, bytes]
    blocks: BlockIds
    notification: bytes | None
    posted_ns: int
    held: bool = field(default=False, init=False)
    fault_decided: bool = field(default=False, init=False)


class WriteOutcome(enum.Enum):
    """Where a write stands that has no error."""

    IN_FLIGHT = enum.auto()
    LANDED = enum.auto()


@dataclass(eq=False, slots=True)
class _Receiver:
    pool: NDArray[np.uint8]  # [blocks, bytes]
    arrived: list[Notification]


class InprocNetwork:
    """One per test or process; senders and receivers get it from whoever makes them.

    `choose_fault`, where set, is asked once for each write that no injected fault took; `choose_bit` says which of a
    corrupted write's bits changes.
    """

    def __init__(self) -> None:
        self.choose_fault: Callable[[InprocWrite], Fault | None] | None = None
        self.choose_bit: Callable[[int], int] = lambda num_bits: 0  # of a write that is corrupted
        self._injected: deque[Fault] = deque()
        self._receivers: dict[str, _Receiver] = {}
        self._held: list[InprocWrite] = []
        self._late: list[tuple[str, NDArray[np.int32], NDArray[np.uint8]]] = []
        self._next_receiver = itertools.count()
        self._begun: dict[str, set[tuple[object, str]]] = {}  # of each receiver: senders and grants that they write

    def inject(self, *faults: Fault) -> None:
        """The next writes to be carried out suffer these faults, one each, in this order."""
        self._injected.extend(faults)

    def release_held(self) -> None:
        """Held writes end well, at their sender's next poll."""
        for write in self._held:
            write.held = False
        self._held.clear()

    def release_late(self) -> None:
        """Late writes land now, where the receiver is still open."""
        for receiver_name, dst_blocks, data in self._late:
            if receiver_name in self._receivers:
                self._receivers[receiver_name].pool[dst_blocks] = data
        self._late.clear()

    def begin(self, sender: object, receiver_name: str, grant_id: str) -> bool:
        """As `KVSender.begin`; a peer that is gone shows at the write."""
        self._begun.setdefault(receiver_name, set()).add((sender, grant_id))
        return True

    def end(self, sender: object, receiver_name: str, grant_id: str) -> None:
        """As `KVSender.end`."""
        self._begun.get(receiver_name, set()).discard((sender, grant_id))

    def end_all(self, sender: object, receiver_name: str) -> None:
        """The sender has left this receiver, or exists no more."""
        begun = self._begun.get(receiver_name, set())
        begun.difference_update([entry for entry in begun if entry[0] is sender])

    def writing(self, receiver_name: str, grant_id: str) -> bool:
        """As `KVReceiver.writing`."""
        return any(grant_id == begun for _, begun in self._begun.get(receiver_name, ()))

    def add_receiver(self, worker_name: str, pool: NDArray[np.uint8], arrived: list[Notification]) -> str:
        """Makes a pool reachable and returns its name here, a new one each time; notifications go to `arrived`."""
        name = f"{worker_name}/{next(self._next_receiver)}"
        self._receivers[name] = _Receiver(pool, arrived)
        return name

    def remove_receiver(self, name: str) -> None:
        """Writes to it fail from now on. Idempotent."""
        self._receivers.pop(name, None)
        self._begun.pop(name, None)

    def carry_out(self, write: InprocWrite) -> WriteOutcome | str:
        """Moves a write as far as it gets; an error is a string. Called at each poll until the write has ended."""
        if write.held:
            return WriteOutcome.IN_FLIGHT
        fault = self._fault_for(write)
        if fault is Fault.HOLD:
            write.held = True
            self._held.append(write)
            return WriteOutcome.IN_FLIGHT
        receiver = self._receivers.get(write.receiver)
        if receiver is None:
            return f"peer {write.peer_id} is gone"
        src, dst = write.blocks
        if fault is Fault.LATE:
            self._late.append((write.receiver, dst, write.pool[src]))  # a copy: the sender's pool may be gone by then
        elif fault is Fault.TEAR:
            half = len(src) // 2
            receiver.pool[dst[:half]] = write.pool[src[:half]]
        if fault in _ERRORS:
            return _ERRORS[fault]
        receiver.pool[dst] = write.pool[src]
        if fault is Fault.CORRUPT:
            self._flip(receiver.pool, dst)
        if write.notification is not None:
            times = 1 if fault is None else _TIMES_NOTIFIED.get(fault, 1)
            receiver.arrived.extend([Notification(write.sender, write.notification)] * times)
        return WriteOutcome.LANDED

    def _flip(self, pool: NDArray[np.uint8], blocks: NDArray[np.int32]) -> None:
        byte, bit = divmod(self.choose_bit(8 * len(blocks) * pool.shape[1]), 8)
        pool[blocks[byte // pool.shape[1]], byte % pool.shape[1]] ^= 1 << bit

    def _fault_for(self, write: InprocWrite) -> Fault | None:
        if write.fault_decided:
            return None
        write.fault_decided = True
        if self._injected:
            return self._injected.popleft()
        return self.choose_fault(write) if self.choose_fault else None
