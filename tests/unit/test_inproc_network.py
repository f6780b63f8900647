"""The faults that the in-process connector makes on demand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from baton.errors import BatonError, ErrorCode
from kv_transfer.base import PoolRegion
from kv_transfer.inproc import Fault, InprocNetwork, InprocReceiver, InprocSender, InprocWrite

BLOCK_BYTES = 64
NUM_BLOCKS = 4
ALL = list(range(NUM_BLOCKS))

Pool = NDArray[np.uint8]


class Pair:
    """A sender whose pool holds 1, 2, 3, 4 in its blocks, connected to a receiver whose pool is zero."""

    def __init__(self) -> None:
        self.network = InprocNetwork()
        self.src: Pool = np.repeat(np.arange(1, NUM_BLOCKS + 1, dtype=np.uint8)[:, None], BLOCK_BYTES, axis=1)
        self.dst: Pool = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
        self.sender = InprocSender(PoolRegion(self.src.ctypes.data, NUM_BLOCKS, BLOCK_BYTES), "p", self.network)
        self.receiver = InprocReceiver(PoolRegion(self.dst.ctypes.data, NUM_BLOCKS, BLOCK_BYTES), "d", self.network)
        self.sender.connect("d#1", self.receiver.endpoint())

    def write(self) -> str | None:
        """Writes all blocks and returns the error."""
        write_id = self.sender.post("d#1", ALL, ALL, b"note")
        (done,) = self.sender.poll()
        assert done.write_id == write_id
        return done.error

    def landed(self) -> list[int]:
        """The first byte of each of the receiver's blocks."""
        return [int(value) for value in self.dst[:, 0]]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_nothing_moves_between_post_and_poll(pair: Pair) -> None:
    pair.sender.post("d#1", ALL, ALL, b"note")
    assert pair.landed() == [0, 0, 0, 0]
    assert pair.receiver.poll() == []
    assert pair.sender.poll()[0].error is None
    assert pair.landed() == [1, 2, 3, 4]
    assert [heard.payload for heard in pair.receiver.poll()] == [b"note"]


@pytest.mark.parametrize(
    ("fault", "error", "landed", "times_notified"),
    [
        (Fault.FAIL, "injected: the write failed", [0, 0, 0, 0], 0),
        (Fault.TEAR, "injected: the write broke off", [1, 2, 0, 0], 0),
        (Fault.CORRUPT, None, [0, 2, 3, 4], 1),
        (Fault.LOSE_NOTIFICATION, None, [1, 2, 3, 4], 0),
        (Fault.REPEAT_NOTIFICATION, None, [1, 2, 3, 4], 2),
    ],
)
def test_a_fault_hits_one_write(
    pair: Pair, fault: Fault, error: str | None, landed: list[int], times_notified: int
) -> None:
    pair.network.inject(fault)
    assert pair.write() == error
    assert pair.landed() == landed
    assert len(pair.receiver.poll()) == times_notified
    assert pair.write() is None
    assert pair.landed() == [1, 2, 3, 4]
    assert len(pair.receiver.poll()) == 1


def test_corruption_is_one_bit(pair: Pair) -> None:
    pair.network.inject(Fault.CORRUPT)
    pair.write()
    assert int(np.bitwise_count(pair.src ^ pair.dst).sum()) == 1


def test_a_late_write_lands_after_its_error_and_after_its_sender(pair: Pair) -> None:
    pair.network.inject(Fault.LATE)
    assert pair.write() == "injected: the write failed, as far as this side can tell"
    assert pair.landed() == [0, 0, 0, 0]
    pair.sender.close()
    pair.src[:] = 99
    pair.network.release_late()
    assert pair.landed() == [1, 2, 3, 4]
    assert pair.receiver.poll() == []


def test_a_late_write_misses_a_closed_receiver(pair: Pair) -> None:
    pair.network.inject(Fault.LATE)
    pair.write()
    pair.receiver.close()
    pair.network.release_late()
    assert pair.landed() == [0, 0, 0, 0]


def test_a_held_write_stays_in_flight_while_others_pass(pair: Pair) -> None:
    pair.network.inject(Fault.HOLD)
    held = pair.sender.post("d#1", [0], [0], b"held")
    passing = pair.sender.post("d#1", [1], [1], b"passing")
    assert [done.write_id for done in pair.sender.poll()] == [passing]
    assert pair.sender.poll() == []
    with pytest.raises(ValueError, match="got disconnect of 'd#1' with 1 writes in flight, expected none"):
        pair.sender.disconnect("d#1")
    assert pair.landed() == [0, 2, 0, 0]
    pair.network.release_held()
    assert [(done.write_id, done.error) for done in pair.sender.poll()] == [(held, None)]
    assert [heard.payload for heard in pair.receiver.poll()] == [b"passing", b"held"]
    pair.sender.disconnect("d#1")


def test_a_held_write_fails_when_its_peer_goes(pair: Pair) -> None:
    pair.network.inject(Fault.HOLD)
    pair.sender.post("d#1", [0], [0])
    assert pair.sender.poll() == []
    pair.receiver.close()
    pair.network.release_held()
    assert pair.sender.poll()[0].error == "peer d#1 is gone"


def test_the_hook_decides_once_for_each_write_that_no_injected_fault_took(pair: Pair) -> None:
    asked: list[tuple[int, str, bytes | None]] = []

    def choose(write: InprocWrite) -> Fault | None:
        asked.append((write.write_id, write.peer_id, write.notification))
        return Fault.HOLD if write.write_id == 1 else None

    pair.network.choose_fault = choose
    pair.network.inject(Fault.FAIL)
    for _ in range(3):
        pair.sender.post("d#1", ALL, ALL, b"note")
    assert [done.write_id for done in pair.sender.poll()] == [0, 2]
    pair.network.release_held()
    assert [done.write_id for done in pair.sender.poll()] == [1]
    assert asked == [(1, "d#1", b"note"), (2, "d#1", b"note")]


def test_only_host_memory_will_do() -> None:
    region = PoolRegion(0, 1, 8, "cuda:0")
    for make in (InprocSender, InprocReceiver):
        with pytest.raises(BatonError, match="got a pool on cuda:0, expected cpu") as caught:
            make(region, "w", InprocNetwork())
        assert caught.value.code is ErrorCode.FAILED_PRECONDITION
