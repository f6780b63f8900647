"""Workers that the directory has forgotten, and one that hangs: what stays in use, and what is given up how fast."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from baton.directory.base import WorkerRecord
from baton.types import Role, WorkerRef
from gateway.config import Limits
from tests.fakes.gateway_stack import ANSWER, Stack, eventually, ids_of, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import FakeWorker, decode_of, hang

ROOT = Path(__file__).parents[2]
ROLES = [("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


class PoolClock:
    """The pool's time, which stands still until it is told to go on: a grace is over when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PoolClock:
    clock = PoolClock()
    monkeypatch.setattr("gateway.pool.time", clock)
    return clock


@pytest.fixture
async def stack(model: Path, clock: PoolClock) -> AsyncIterator[Stack]:
    async with running_stack(model, ROLES, Limits(poll_interval_s=60, unlisted_s=0.5)) as running:
        yield running


def names(stack: Stack) -> set[str]:
    pool = stack.gateway.pool
    return {worker.name for role in Role for worker in pool.workers(role)}


async def test_an_emptied_directory_does_not_stop_serving(stack: Stack, clock: PoolClock) -> None:
    records, stack.directory.records = stack.directory.records, []
    for _ in range(3):
        await stack.gateway.pool.refresh()
        assert ids_of(await stack.generate()) == ANSWER
    stack.directory.records = records[:1]  # they come back one by one
    await stack.gateway.pool.refresh()
    assert names(stack) == {"p0", "p1", "d0"}
    clock.now_s += 0.6
    await stack.gateway.pool.refresh()
    assert names(stack) == {"p0"}  # the grace of the others is over
    stack.directory.records = records
    await stack.gateway.pool.refresh()
    assert ids_of(await stack.generate()) == ANSWER


async def test_the_grace_begins_anew_for_a_worker_that_was_back(stack: Stack, clock: PoolClock) -> None:
    records = stack.directory.records
    for _ in range(3):
        stack.directory.records = []
        await stack.gateway.pool.refresh()
        clock.now_s += 0.3
        stack.directory.records = records
        await stack.gateway.pool.refresh()
    stack.directory.records = []
    await stack.gateway.pool.refresh()
    assert names(stack) == {"p0", "p1", "d0"}


@pytest.mark.parametrize("dies", [False, True])
async def test_who_leaves_or_dies_is_gone_at_once(stack: Stack, dies: bool) -> None:
    await stack.generate()  # connected
    worker = stack.workers["p0"]
    await (worker.die() if dies else worker.set_serving(False))
    stack.directory.records = stack.directory.records[1:]
    started = time.monotonic()
    await stack.gateway.pool.refresh()
    assert names(stack) == {"p1", "d0"}
    assert time.monotonic() - started < 2


async def test_a_replaced_worker_is_gone_at_once(stack: Stack) -> None:
    """Though its old life still answers."""
    successor = FakeWorker("d0", Role.DECODE, incarnation="2")
    successor.decode.script = decode_of(ANSWER)
    stack.directory.records = [*stack.directory.records[:2], await successor.start()]
    await stack.gateway.pool.refresh()
    assert [worker.ref.incarnation for worker in stack.gateway.pool.workers(Role.DECODE)] == ["2"]
    await successor.die()


def spawn_decode_worker(address_file: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.fakes.workers", Role.DECODE.value, address_file], cwd=ROOT)


async def test_a_worker_that_hangs_is_noticed_in_five_seconds(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped, it keeps its connections, and nobody says goodbye. There is no other, so the attempts are used up."""
    address_file = tmp_path / "address"
    process = spawn_decode_worker(address_file)
    try:
        await eventually(address_file.exists, seconds=30)
        ref = WorkerRef("decode-process", "1")
        record = WorkerRecord(ref, Role.DECODE, address_file.read_text(), "m", "f", 16, 4096, 100)
        stack.directory.records = [*stack.directory.records[:2], record]
        await stack.workers["d0"].die()
        await stack.gateway.pool.refresh()
        stack.prefill.script = hang
        stream = stack.stream(deadline_s=60)
        await eventually(lambda: stack.prefill.requests)
        os.kill(process.pid, signal.SIGSTOP)
        await eventually(lambda: "attempt 1 failed" in caplog.text, seconds=8)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "decode worker decode-process died or cannot be reached" in caught.value.details()
    finally:
        process.kill()
        process.wait()
