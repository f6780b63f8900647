"""kill -9 with one worker of each role: what no other can do fails in 5 s, nothing leaks, the stack serves again."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc
from tests.e2e.client import ask_together, assert_at_rest, connect, greedy, token_request, worker_stats
from tests.e2e.conftest import OPTIONS

LEASE_S = 6.0


@pytest.fixture
def stack(smollm2: Path) -> Iterator[LocalStack]:
    options = StackOptions(model=str(smollm2), lease_s=LEASE_S, longest_write_s=0.5, clock_margin_s=0.5, **OPTIONS)  # type: ignore[arg-type]
    with LocalStack(options) as stack:
        yield stack


def end_of_request_after(
    stack: LocalStack, request: inference_pb2.GenerateRequest, ready: Callable[[int], bool], act: Callable[[], None]
) -> tuple[grpc.aio.AioRpcError, float] | None:
    """Streams a request, calls `act` once `ready(tokens so far)` holds; the error, and seconds from act to error.

    None when the request ended well, with all its tokens.
    """

    async def run() -> tuple[grpc.aio.AioRpcError, float] | None:
        async with connect(stack.gateway_address) as channel:
            call = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
            tokens, acted = 0, 0.0
            reader = asyncio.create_task(call.read())
            try:
                while True:
                    if not acted and await asyncio.to_thread(ready, tokens):
                        await asyncio.to_thread(act)
                        acted = time.monotonic()
                    done, _ = await asyncio.wait([reader], timeout=0.02)
                    if done:
                        response = reader.result()
                        if response is grpc.aio.EOF:
                            assert acted, "the request ended before anything happened"
                            assert tokens == request.sampling.max_tokens
                            return None
                        tokens += len(response.token_ids)
                        reader = asyncio.create_task(call.read())
            except grpc.aio.AioRpcError as error:
                return error, time.monotonic() - acted

    return asyncio.run(run())


def assert_serves(stack: LocalStack, worker: str) -> None:
    """The restarted worker, a new incarnation under its old name, does its part again."""
    stack.restart(worker)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            (answer,) = ask_together(stack.gateway_address, [token_request(range(300, 340), greedy(4))])
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.2)  # the gateway has yet to hear of it
        else:
            assert len(answer.token_ids) == 4
            return
    pytest.fail(f"{worker} does not serve 20 s after its restart")


def test_prefill_killed_in_mid_prefill(stack: LocalStack) -> None:
    prefill, decode = stack.worker_addresses["prefill-0"], stack.worker_addresses["decode-0"]
    request = token_request([7 + n % 900 for n in range(3000)], greedy(8))

    def computing(tokens: int) -> bool:
        return worker_stats(prefill).steps >= 2

    ended = end_of_request_after(stack, request, computing, lambda: stack.kill("prefill-0"))
    assert ended is None  # the decode worker prefills
    # Nobody can confirm that the dead worker has stopped writing, so its blocks wait for the lease to end.
    assert_at_rest([decode], within_s=LEASE_S + 5)
    assert_serves(stack, "prefill-0")
    assert_at_rest([*stack.worker_addresses.values()])


def test_decode_killed_in_mid_decode(stack: LocalStack) -> None:
    request = token_request(range(100, 400), greedy(2000, ignore_eos=True))
    ended = end_of_request_after(stack, request, lambda tokens: tokens >= 5, lambda: stack.kill("decode-0"))
    assert ended is not None, "the request ended well"
    error, seconds = ended
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "decode" in (error.details() or "")
    assert seconds < 5
    assert_at_rest([stack.worker_addresses["prefill-0"]])
    assert_serves(stack, "decode-0")
    assert_at_rest([*stack.worker_addresses.values()])


def test_an_engine_core_does_not_outlive_its_service(stack: LocalStack) -> None:
    pid = stack.pids["decode-0"]
    cores = psutil.Process(pid).children(recursive=True)
    assert cores
    os.kill(pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(cores, timeout=5)
    assert not alive


def test_a_dead_engine_core_ends_requests_and_its_service(stack: LocalStack) -> None:
    service = psutil.Process(stack.pids["decode-0"])
    (core,) = [child for child in service.children(recursive=True) if "engine.process" in child.cmdline()]
    request = token_request(range(100, 200), greedy(2000, ignore_eos=True))
    ended = end_of_request_after(stack, request, lambda tokens: tokens >= 3, core.kill)
    assert ended is not None, "the request ended well"
    error, seconds = ended
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert seconds < 5
    assert service.wait(timeout=10) in (1, None)
    assert_at_rest([stack.worker_addresses["prefill-0"]])
