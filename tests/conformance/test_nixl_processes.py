"""NIXL between two processes: transfers, and what a sender sees when the receiver is killed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from baton.errors import BatonError, ErrorCode
from baton.types import KvEndpoint
from kv_transfer.base import PoolRegion, WriteDone
from kv_transfer.nixl import NixlReceiver, NixlSender

POISON = 0x55
BLOCK_BYTES = 65536
NUM_BLOCKS = 64
DEATH_SEEN_WITHIN_S = 5.0

Pool = NDArray[np.uint8]  # [blocks, bytes]


def make_pool(value: int) -> tuple[Pool, PoolRegion]:
    pool = np.full((NUM_BLOCKS, BLOCK_BYTES), value, dtype=np.uint8)
    return pool, PoolRegion(pool.ctypes.data, NUM_BLOCKS, BLOCK_BYTES)


def receive(commands: Connection) -> None:
    """The child: answers "poll" with what arrived and "blocks" with the pool's bytes, until the pipe ends."""
    pool, region = make_pool(POISON)
    receiver = NixlReceiver(region, "decode")
    commands.send(receiver.endpoint().metadata)
    while True:
        try:
            command = commands.recv()
        except EOFError:
            break
        if command == "poll":
            commands.send([(heard.sender, heard.payload) for heard in receiver.poll()])
        else:
            commands.send(pool.tobytes())
    receiver.close()


class Child:
    """A process with a receiver in it."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=receive, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.endpoint = KvEndpoint("nixl", self.pipe.recv())

    def ask(self, command: str) -> Any:
        self.pipe.send(command)
        return self.pipe.recv()

    def pool(self) -> Pool:
        return np.frombuffer(self.ask("blocks"), dtype=np.uint8).reshape(NUM_BLOCKS, BLOCK_BYTES)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and waits for it: each thread runs on until it notices the signal."""
        self.signal(signal.SIGSTOP)
        tasks = psutil.Process(self.process.pid)
        deadline = time.monotonic() + 10
        while {psutil.Process(thread.id).status() for thread in tasks.threads()} != {psutil.STATUS_STOPPED}:
            assert time.monotonic() < deadline, "the child did not stop within 10 s"
            time.sleep(0.001)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join()

    def end(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
        self.process.join(timeout=10)
        self.process.kill()


@pytest.fixture
def start() -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start_child() -> Child:
        children.append(Child())
        return children[-1]

    yield start_child
    for child in children:
        child.end()


@pytest.fixture
def sender() -> Iterator[tuple[NixlSender, Pool]]:
    pool, region = make_pool(0)
    pool[:] = np.random.default_rng(0).integers(0, 256, pool.shape, dtype=np.uint8)
    sender = NixlSender(region, "prefill")
    yield sender, pool
    sender.close()


def finish(sender: NixlSender, within_s: float = 20.0) -> WriteDone:
    deadline = time.monotonic() + within_s
    while not (ended := sender.poll()):
        assert time.monotonic() < deadline, f"no write ended within {within_s} s"
        time.sleep(0.0005)
    (done,) = ended
    return done


def test_blocks_and_notification_reach_another_process(
    start: Callable[[], Child], sender: tuple[NixlSender, Pool]
) -> None:
    tx, src = sender
    child = start()
    tx.connect("d#1", child.endpoint)
    order = np.random.default_rng(1).permutation(NUM_BLOCKS)[:40].tolist()
    expected = np.full_like(src, POISON)
    expected[order] = src[order[::-1]]

    write_id = tx.post("d#1", order[::-1], order, b"ready")

    assert finish(tx)[:2] == (write_id, None)
    heard: list[tuple[str, bytes]] = []
    deadline = time.monotonic() + 20
    while not heard and time.monotonic() < deadline:
        heard = child.ask("poll")
    assert heard == [("prefill", b"ready")]
    np.testing.assert_array_equal(child.pool(), expected)
    assert child.ask("poll") == []


def test_a_killed_receiver_ends_writes_with_an_error_and_a_new_one_can_be_reached(
    start: Callable[[], Child], sender: tuple[NixlSender, Pool]
) -> None:
    tx, src = sender
    child = start()
    tx.connect("d#1", child.endpoint)
    tx.post("d#1", [0], [0])
    assert finish(tx).error is None
    child.kill()

    for _ in range(2):
        write_id = tx.post("d#1", [1, 5], [1, 2], b"lost")
        done = finish(tx, DEATH_SEEN_WITHIN_S)
        assert done.write_id == write_id
        assert done.error is not None
        assert "write to peer d#1 failed" in done.error

    tx.disconnect("d#1")
    with pytest.raises(BatonError, match="cannot reach peer d#1") as caught:
        tx.connect("d#1", child.endpoint)
    assert caught.value.code is ErrorCode.UNAVAILABLE

    reborn = start()
    tx.connect("d#2", reborn.endpoint)
    tx.post("d#2", [1, 5], [1, 2], b"ready")
    assert finish(tx).error is None
    np.testing.assert_array_equal(reborn.pool()[[1, 2]], src[[1, 5]])


def test_a_receiver_killed_before_the_first_write_is_an_error_of_that_write(
    start: Callable[[], Child], sender: tuple[NixlSender, Pool]
) -> None:
    tx, _ = sender
    child = start()
    tx.connect("d#1", child.endpoint)
    child.kill()
    tx.post("d#1", [1], [1], b"lost")
    assert finish(tx, DEATH_SEEN_WITHIN_S).error is not None


def test_a_write_in_flight_ends_with_an_error_when_the_receiver_is_killed(
    start: Callable[[], Child], sender: tuple[NixlSender, Pool]
) -> None:
    tx, _ = sender
    child, other = start(), start()
    tx.connect("d#1", child.endpoint)
    tx.connect("d#2", other.endpoint)
    child.stop()  # a hung peer cannot confirm, so the write to it stays in flight
    stuck = tx.post("d#1", list(range(32)), list(range(32)), b"lost")
    passing = tx.post("d#2", [0], [0])
    assert finish(tx)[:2] == (passing, None)
    assert tx.poll() == []
    with pytest.raises(ValueError, match="with 1 writes in flight, expected none"):
        tx.disconnect("d#1")

    child.kill()

    done = finish(tx, DEATH_SEEN_WITHIN_S)
    assert done.write_id == stuck
    assert done.error is not None
    tx.disconnect("d#1")
    tx.post("d#2", [1], [1])
    assert finish(tx).error is None


def test_a_hung_receiver_that_wakes_up_gets_its_write(
    start: Callable[[], Child], sender: tuple[NixlSender, Pool]
) -> None:
    tx, src = sender
    child = start()
    tx.connect("d#1", child.endpoint)
    child.stop()
    tx.post("d#1", [7], [9])
    time.sleep(0.2)
    assert tx.poll() == []
    child.signal(signal.SIGCONT)
    assert finish(tx).error is None
    np.testing.assert_array_equal(child.pool()[9], src[7])
