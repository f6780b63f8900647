"""Workers of a running stack killed and started again, at random, while clients ask and check what they get."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2, worker_pb2, worker_pb2_grpc
from tests.e2e.client import connect

_FAKES = Path(__file__).resolve().parent.parent / "fakes"
_ROOT = _FAKES.parent.parent
LEASE_S = 4.0
_CLIENTS = 6
_REQUESTS = 24  # different ones
_AT_REST_WITHIN_S = LEASE_S + 30.0
_CLEAR = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
_POISON = "died while they computed"  # what a request hears, with INTERNAL, that was on two workers that were killed


class KillCounts(NamedTuple):
    """What came of it."""

    kills: int
    requests: int  # each has ended once
    answered: int
    failed_clearly: int
    wrong: list[str]
    leaked: list[str]
    lost: list[str]


@contextmanager
def nursed_stack(model: Path, run_folder: Path, prefill: int = 3, decode: int = 3) -> Iterator[LocalStack]:
    """A stack over real NIXL whose engine cores start in a moment."""
    socket_path = str(run_folder / "nursery")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{_ROOT}{os.pathsep}{_ROOT / 'kernels'}"}
    saved, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH"), environ["PYTHONPATH"]
    nursery = subprocess.Popen([sys.executable, str(_FAKES / "core_nursery.py"), socket_path], env=environ)
    try:
        _wait_for(Path(socket_path), nursery)
        start = (sys.executable, str(_FAKES / "nursed_service.py"), socket_path)
        services = {
            "gateway": (sys.executable, "-m", "gateway"),
            "prefill": (*start, "prefill_service"),
            "decode": (*start, "decode_service"),
        }
        options = StackOptions(
            model=str(model),
            prefill=prefill,
            decode=decode,
            port=0,
            block_size=8,
            kv_cache_bytes=1 << 20,
            swap_space_bytes=1 << 20,
            max_num_batched_tokens=64,
            num_threads=1,
            lease_s=LEASE_S,
            longest_write_s=0.5,
            clock_margin_s=0.5,
        )
        with LocalStack(options, services) as stack:
            yield stack
    finally:
        nursery.kill()
        nursery.wait()
        os.environ.pop("PYTHONPATH")
        if saved is not None:
            os.environ["PYTHONPATH"] = saved


def _wait_for(path: Path, process: "subprocess.Popen[bytes]", within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert process.poll() is None, "the nursery has ended"
        assert time.monotonic() < deadline, f"no nursery within {within_s} s"
        time.sleep(0.02)


def make_requests() -> list[inference_pb2.GenerateRequest]:
    """Of several lengths; greedy and drawn; some with a prefix that others have, too."""
    requests = []
    for index in range(_REQUESTS):
        rng = random.Random(index)
        shared = [3 + index % 3] * rng.randrange(40)
        ids = [*shared, *(rng.randrange(3, 320) for _ in range(rng.randrange(5, 60)))]
        sampling = sampling_pb2.SamplingParams(
            temperature=0.8 if index % 2 else 0.0, seed=index, max_tokens=rng.randrange(4, 40), ignore_eos=True
        )
        requests.append(
            inference_pb2.GenerateRequest(tokens=inference_pb2.TokenPrompt(token_ids=ids), sampling=sampling)
        )
    return requests


class _Clients:
    """Ask one request after the other until told to stop, in a thread of their own."""

    def __init__(self, address: str, expected: Sequence[Sequence[int]]) -> None:
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self._address = address
        self._expected = expected
        self._requests = make_requests()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when every request has ended."""
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        async with connect(self._address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            await asyncio.gather(*(self._ask_on(stub, random.Random(number)) for number in range(_CLIENTS)))

    async def _ask_on(self, stub: inference_pb2_grpc.InferenceStub, rng: random.Random) -> None:
        while not self._stop.is_set():
            await self._ask(stub, rng.randrange(len(self._requests)))

    async def _ask(self, stub: inference_pb2_grpc.InferenceStub, index: int) -> None:
        tokens: list[int] = []
        num_ends = 0
        try:
            async for response in stub.Generate(self._requests[index], timeout=90):
                tokens += response.token_ids
                num_ends += response.finish_reason != sampling_pb2.FINISH_REASON_UNSPECIFIED
            self.ends["answered"] += 1
        except grpc.aio.AioRpcError as error:
            self.ends["failed"] += 1
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.lost.append(f"request {index}: no end within 90 s")
            elif error.code() not in _CLEAR and _POISON not in (error.details() or ""):
                self.wrong.append(f"request {index}: {error.code()} {error.details()}")
            if tokens != list(self._expected[index][: len(tokens)]) or num_ends:
                self.wrong.append(f"request {index}: got {tokens} and {num_ends} ends before its error")
            return
        if tokens != list(self._expected[index]) or num_ends != 1:
            expected = self._expected[index]
            self.wrong.append(f"request {index}: got {tokens} and {num_ends} ends, expected {expected} and one")


def run_kills(stack: LocalStack, kills: int, seed: int = 0) -> KillCounts:
    """Kills so many workers, one to three at once, each started again at once."""
    rng = random.Random(seed)
    expected = asyncio.run(_undisturbed(stack.gateway_address))
    clients = _Clients(stack.gateway_address, expected)
    clients.start()
    killed = 0
    try:
        while killed < kills:
            time.sleep(rng.uniform(0.0, 0.3))  # so that deaths come at any moment of a request
            names = rng.sample(sorted(stack.worker_addresses), min(rng.randrange(1, 4), kills - killed))
            for name in names:
                stack.kill(name)
            _start_again(stack, names)
            killed += len(names)
    finally:
        clients.stop()
    leaked = [problem for name, address in stack.worker_addresses.items() for problem in _held(name, address)]
    num_requests = clients.ends.total()
    return KillCounts(
        killed, num_requests, clients.ends["answered"], clients.ends["failed"], clients.wrong, leaked, clients.lost
    )


def _start_again(stack: LocalStack, names: Sequence[str]) -> None:
    """All at once; `LocalStack.restart` would wait for each."""
    deadline_s = time.monotonic() + 120
    for name in names:
        stack._spawn(stack._commands[name])
    for name in names:
        stack._wait_for(stack._commands[name], deadline_s)


async def _undisturbed(address: str) -> list[list[int]]:
    async with connect(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        async def ask(request: inference_pb2.GenerateRequest) -> list[int]:
            return [token async for response in stub.Generate(request, timeout=90) for token in response.token_ids]

        return [await ask(request) for request in make_requests()]


def _held(name: str, address: str) -> list[str]:
    """What a worker still holds after a while; nothing is well."""
    deadline = time.monotonic() + _AT_REST_WITHIN_S
    while True:
        try:
            with grpc.insecure_channel(address) as channel:
                control = worker_pb2_grpc.WorkerControlStub(channel)
                stats = control.CheckIntegrity(worker_pb2.CheckIntegrityRequest(), timeout=30)
        except grpc.RpcError as error:
            return [f"{name}: {error}"]
        held = stats.blocks_active + stats.blocks_quarantined + stats.grants_open
        held += stats.requests_running + stats.requests_waiting
        if not held and stats.blocks_free + stats.blocks_cached == stats.blocks_total:
            return []
        if time.monotonic() > deadline:
            return [f"{name} still holds blocks: {stats}"]
        time.sleep(0.1)
