"""What a gateway does when workers die, clients leave or deadlines pass: clear words, and nothing left behind."""

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.directory.base import WorkerRecord
from baton.errors import BatonError, ErrorCode, Reason
from baton.rpc import sampling_pb2, worker_pb2
from baton.types import Role, WorkerRef
from gateway.config import Limits
from tests.fakes.gateway_stack import ANSWER, Stack, eventually, ids_of, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import FakeWorker, admitted, decode_of, first_token, hang, prefill_done, tokens

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model) as running:
        yield running


async def first_then_hang(request: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
    yield first_token(ANSWER[0])
    await asyncio.Event().wait()


async def some_then_hang(request: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
    yield admitted()
    yield tokens(1, *ANSWER[1:3])
    await asyncio.Event().wait()


def failing(error: BatonError | Exception) -> Callable[[Any], AsyncIterator[Any]]:
    async def script(request: Any) -> AsyncIterator[Any]:
        raise error
        yield

    return script


def spawn_worker(role: Role, address_file: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.fakes.workers", role.value, address_file], cwd=ROOT)


@pytest.mark.parametrize("fenced", [True, False])
async def test_client_leaves_during_prefill(stack: Stack, fenced: bool) -> None:
    stack.prefill.script, stack.decode.script, stack.prefill.fenced = hang, hang, fenced
    stream = stack.stream()
    await eventually(lambda: stack.prefill.requests and stack.decode.requests)
    stream.cancel()
    await eventually(lambda: stack.decode.releases)
    request = stack.prefill.requests[0]
    assert stack.prefill.cancels == [worker_pb2.CancelPrefillRequest(request_id=request.request_id, epoch=1)]
    assert stack.decode.releases == [worker_pb2.ReleaseRequest(grant_id="grant-1", epoch=1, fenced=fenced)]
    await stack.quiet()


async def test_client_leaves_while_decoding(stack: Stack) -> None:
    stack.decode.script = decode_of(list(range(100, 300)), delay_s=0.01)
    stream = stack.stream()
    for _ in range(5):
        await stream.read()
    stream.cancel()
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases[0].fenced
    await stack.quiet()


async def test_client_stops_reading_and_leaves(stack: Stack) -> None:
    """The gateway is held up in a send, not in a wait, when the cancellation comes."""
    stack.decode.script = decode_of(list(range(100, 650)) * 8)
    stream = stack.stream(request_id="r" * 128)
    await stream.read()
    await asyncio.sleep(0.5)
    stream.cancel()
    await stack.quiet()
    assert (
        ids_of(await stack.generate(request_id="r" * 128, sampling=sampling_pb2.SamplingParams(stop=["none"])))[0]
        == 100
    )


async def test_client_leaves_while_reserving(stack: Stack) -> None:
    stack.decode.reserve_gate = asyncio.Event()
    stream = stack.stream()
    await eventually(lambda: stack.decode.reserves)
    stream.cancel()
    await asyncio.sleep(0.1)
    assert stack.decode.releases == []
    stack.decode.reserve_gate.set()
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases[0] == worker_pb2.ReleaseRequest(grant_id="grant-1", epoch=1, fenced=True)
    assert stack.prefill.requests == []
    await stack.quiet()


async def test_deadline_passes_on(stack: Stack) -> None:
    stack.decode.script = some_then_hang
    started = time.monotonic()
    error = await stack.error(deadline_s=0.5)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 2
    await eventually(lambda: stack.decode.releases)
    await stack.quiet()


async def test_prefill_worker_dies(stack: Stack) -> None:
    """The decode worker that is left prefills; the blocks of the failed attempt are not fenced."""
    answers = decode_of(ANSWER)
    stack.prefill.script = first_then_hang
    stack.decode.script = lambda request: answers(request) if request.HasField("local") else hang(request)
    stream = stack.stream()
    responses = [await stream.read()]
    await stack.workers["p0"].die()
    responses += await stack.read_all(stream)
    assert ids_of(responses) == ANSWER
    assert responses[-1].hand_over.prefill_worker == responses[-1].hand_over.decode_worker == "d0"
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases == [worker_pb2.ReleaseRequest(grant_id="grant-1", epoch=1, fenced=False)]
    await stack.quiet()


async def test_decode_worker_dies(stack: Stack) -> None:
    stack.prefill.script, stack.decode.script = first_then_hang, some_then_hang
    stream = stack.stream()
    for _ in range(2):
        await stream.read()
    await stack.workers["d0"].die()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert re.fullmatch(
        r"gave up after 3 attempts: decode worker d0 died .*; send the request again", caught.value.details()
    )
    await eventually(lambda: stack.prefill.cancels)
    await stack.quiet()


async def test_prefill_worker_dies_after_the_hand_over(stack: Stack) -> None:
    stack.prefill.script, stack.decode.script = first_then_hang, decode_of(ANSWER, delay_s=0.1)
    stream = stack.stream()
    responses = [await stream.read(), await stream.read()]
    await stack.workers["p0"].die()
    responses += await stack.read_all(stream)
    assert ids_of(responses) == ANSWER
    await stack.quiet()


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_worker_process_is_killed(model: Path, tmp_path: Path, role: Role) -> None:
    """A real process and a real SIGKILL, since a server that stops in order says goodbye."""
    async with running_stack(model, max_attempts=1) as stack:
        await assert_killed_worker_is_named(stack, tmp_path, role)


async def assert_killed_worker_is_named(stack: Stack, tmp_path: Path, role: Role) -> None:
    stack.prefill.script = first_then_hang
    stack.decode.script = hang  # not admitted: prefill is still needed
    address_file = tmp_path / "address"
    process = spawn_worker(role, address_file)
    try:
        await eventually(address_file.exists, seconds=30)
        name = f"{role.value}-process"
        record = WorkerRecord(WorkerRef(name, "1"), role, address_file.read_text(), "m", "f", 16, 4096, 100)
        stack.directory.records = [*(other for other in stack.directory.records if other.role is not role), record]
        await stack.workers["p0" if role is Role.PREFILL else "d0"].set_serving(False)
        await stack.gateway.pool.refresh()
        stream = stack.stream()
        await stream.read()
        started = time.monotonic()
        process.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.read_all(stream)
        assert time.monotonic() - started < 5
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"{role.value} worker {name} died" in caught.value.details()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RuntimeError("secret"), grpc.StatusCode.INTERNAL),
        (BatonError(ErrorCode.FAILED_PRECONDITION, "layouts differ"), grpc.StatusCode.FAILED_PRECONDITION),
        (BatonError(ErrorCode.CANCELLED, "its lease ran out"), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_worker_answers_with_an_error(stack: Stack, side: str, failure: Exception, code: grpc.StatusCode) -> None:
    stack.prefill.script, stack.decode.script = hang, hang
    getattr(stack, side).script = failing(failure)
    error = await stack.error()
    assert error.code() is code
    assert f"{side} worker {side[0]}0" in error.details()
    assert ("gave the request up (its lease ran out); send" in error.details()) is ("lease" in str(failure))
    assert "secret" not in error.details()
    await eventually(lambda: stack.decode.releases and stack.prefill.cancels)
    await stack.quiet()


async def test_streams_that_end_too_early_are_errors(stack: Stack) -> None:
    async def nothing(request: Any) -> AsyncIterator[Any]:
        return
        yield

    async def gap(request: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield tokens(2, ANSWER[2])
        yield worker_pb2.DecodeEvent(finished=worker_pb2.DecodeFinished(finish_reason=1))

    for script, words in ((nothing, "without a reason"), (gap, "with tokens missing")):
        stack.decode.script = script
        error = await stack.error()
        assert error.code() is grpc.StatusCode.INTERNAL
        assert f"decode worker d0 ended its stream {words}" in error.details()
    stack.prefill.script, stack.decode.script = nothing, hang
    assert "prefill worker p0 ended its stream before the first token" in (await stack.error()).details()
    await stack.quiet()


async def test_hung_reserve_is_given_up(model: Path) -> None:
    async with running_stack(model, limits=Limits(reserve_timeout_s=0.2)) as stack:
        stack.decode.reserve_gate = asyncio.Event()
        error = await stack.error()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == (
            "gave up after 3 attempts: decode worker d0 gave no answer to Reserve in 0.2 s; send the request again"
        )
        stack.decode.reserve_gate.set()


async def test_aggregated_worker_dies(model: Path) -> None:
    async with running_stack(model, roles=[("a0", Role.AGGREGATED)]) as stack:
        stack.workers["a0"].decode.script = hang
        stream = stack.stream()
        await eventually(lambda: stack.workers["a0"].decode.requests)
        await stack.workers["a0"].die()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert "aggregated worker a0 died" in caught.value.details()


async def test_duplicate_request_id(stack: Stack) -> None:
    stack.decode.script = hang
    stream = stack.stream(request_id="same")
    await stream.read()
    error = await stack.error(request_id="same")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "request_id: got 'same', which a running request has" in error.details()
    stream.cancel()
    await stack.quiet()
    stack.decode.script = decode_of(ANSWER)
    assert ids_of(await stack.generate(request_id="same")) == ANSWER


async def test_no_workers(model: Path) -> None:
    async with running_stack(model, roles=[("p0", Role.PREFILL)]) as stack:
        error = await stack.error()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "no decode worker is registered" in error.details()


async def test_directory_outage_does_not_stop_serving(stack: Stack) -> None:
    stack.directory.down = True
    await stack.gateway.pool.refresh()
    assert ids_of(await stack.generate()) == ANSWER


async def test_new_incarnation_replaces_the_old_one(stack: Stack) -> None:
    stack.decode.script = decode_of(ANSWER, delay_s=0.1)
    stream = stack.stream()
    responses = [await stream.read()]
    successor = FakeWorker("d0", Role.DECODE, incarnation="2")
    successor.decode.script = decode_of(ANSWER)
    stack.directory.records[1] = await successor.start()
    await stack.gateway.pool.refresh()
    assert ids_of(await stack.generate()) == ANSWER
    assert len(successor.decode.requests) == 1
    responses += await stack.read_all(stream)  # the old channel stays open for its running call
    assert ids_of(responses) == ANSWER
    await successor.die()


async def test_worker_that_came_back_at_its_address_is_used(stack: Stack) -> None:
    address = stack.directory.records[1].address
    await stack.workers["d0"].die()
    assert (await stack.error()).code() is grpc.StatusCode.UNAVAILABLE
    successor = FakeWorker("d0", Role.DECODE, incarnation="2")
    successor.decode.script = decode_of(ANSWER)
    stack.directory.records[1] = await successor.start(int(address.rpartition(":")[2]))
    await stack.gateway.pool.refresh()
    assert ids_of(await stack.generate()) == ANSWER
    await successor.die()


async def test_lost_worker_is_avoided_for_a_while(model: Path) -> None:
    roles = [("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE)]
    async with running_stack(model, roles, max_attempts=1) as stack:
        died = BatonError(ErrorCode.UNAVAILABLE, "the engine core died", reason=Reason.ENGINE_DIED)
        stack.prefill.script = failing(died)
        assert (await stack.error()).code() is grpc.StatusCode.UNAVAILABLE
        assert (await stack.generate())[-1].hand_over.prefill_worker == "p1"


async def test_close_frees_what_runs(model: Path) -> None:
    async with running_stack(model) as stack:
        stack.decode.script = hang
        stream = stack.stream()
        await stream.read()
        await stack.gateway.close()
        assert stack.decode.releases[0].fenced
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()
        await stack.gateway.close()  # a second time does nothing


async def test_no_grant_is_forgotten_whenever_clients_leave(stack: Stack) -> None:
    """Clients leave at random moments; every grant was used up by decode or given back."""
    draw = random.Random(1)
    used_up: set[str] = set()

    async def prefill(request: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
        await asyncio.sleep(draw.random() * 0.02)
        yield first_token(ANSWER[0])
        await asyncio.sleep(draw.random() * 0.02)
        yield prefill_done()

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        await asyncio.sleep(draw.random() * 0.03)
        async for event in decode_of(ANSWER, delay_s=0.002)(request):
            if event.HasField("finished"):
                used_up.add(request.grant_id)
            yield event

    async def client() -> None:
        await asyncio.sleep(draw.random())
        stream = stack.stream()
        if draw.random() < 0.8:
            asyncio.get_running_loop().call_later(draw.random() * 0.2, stream.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await stack.read_all(stream)

    stack.prefill.script, stack.decode.script = prefill, decode
    await asyncio.gather(*(client() for _ in range(300)))
    await stack.quiet()
    given_back = {release.grant_id for release in stack.decode.releases}
    granted = {f"grant-{index + 1}" for index in range(len(stack.decode.reserves))}
    assert granted == used_up | given_back
    assert used_up
    assert given_back
