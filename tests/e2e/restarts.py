"""Workers that are restarted under the same address again and again while clients ask: what comes of it, counted."""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil

from baton.config import StackOptions
from baton.local.stack import LocalStack
from baton.rpc import worker_pb2, worker_pb2_grpc
from tests.e2e.client import connect, generate, greedy, token_request, worker_stats
from tests.e2e.oracle import Oracle, prompts_with_clear_answers
from tests.e2e.under_load import stack_options

PROMPTS = (12, 20, 33, 48, 64)  # tokens each
MAX_TOKENS = 12
CLIENTS = 6
RESTARTED = ("prefill-0", "decode-0")  # the others, and the gateway, survive


def small_pools(model: Path) -> StackOptions:
    """Pools so small that the load has touched every block before memory is looked at; a page counts when touched."""
    return stack_options(str(model), kv_cache_bytes=48 << 20, max_model_len=256, swap_space_bytes=0)


@dataclass
class Counts:
    """What the clients have seen, and how the survivors' memory went."""

    requests: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESTARTED, 0))
    rss_before: dict[str, int] = field(default_factory=dict)
    rss_after: dict[str, int] = field(default_factory=dict)

    def growth(self) -> dict[str, float]:
        """Of each survivor's memory, as a share of what it was."""
        return {name: self.rss_after[name] / before - 1 for name, before in self.rss_before.items()}

    def __str__(self) -> str:
        memory = ", ".join(
            f"{name} {self.rss_before[name] / 2**20:.0f} to {self.rss_after[name] / 2**20:.0f} MiB ({share:+.1%})"
            for name, share in self.growth().items()
        )
        return (
            f"{sum(self.restarts.values())} restarts {self.restarts}, {self.requests} requests, {self.wrong} wrong, "
            f"{len(self.errors)} errors; memory: {memory}"
        )


class Clients(threading.Thread):
    """Ask one known prompt after the other until they are told to stop, and compare each answer with transformers'."""

    def __init__(self, gateway: str, model: Path, counts: Counts) -> None:
        super().__init__(daemon=True)
        self._gateway = gateway
        self._counts = counts
        self._over = threading.Event()
        prompts, answers = prompts_with_clear_answers(Oracle(model), PROMPTS, MAX_TOKENS)
        self._questions = itertools.cycle(zip(prompts, answers, strict=True))

    def run(self) -> None:
        async def all_clients() -> None:
            async with connect(self._gateway) as channel:
                await asyncio.gather(*(self._client(channel) for _ in range(CLIENTS)))

        asyncio.run(all_clients())

    async def _client(self, channel: grpc.aio.Channel) -> None:
        while not self._over.is_set():
            prompt, expected = next(self._questions)
            try:
                answer = await generate(channel, token_request(prompt, greedy(MAX_TOKENS)), timeout_s=60)
            except grpc.aio.AioRpcError as error:
                self._counts.errors.append(f"{error.code()}: {error.details()}")
            else:
                self._counts.wrong += answer.token_ids != expected.token_ids
            self._counts.requests += 1

    def stop(self) -> None:
        """Returns when the last answer is here."""
        self._over.set()
        self.join()


def restart_under_load(stack: LocalStack, model: Path, num_rounds: int, num_warm_up: int) -> Counts:
    """A round restarts each of RESTARTED: killed in one round, drained in the next.

    Memory is compared between the end of round `num_warm_up` and the end.
    """
    counts = Counts()
    clients = Clients(stack.gateway_address, model, counts)
    clients.start()
    try:
        for round_number in range(num_rounds):
            if round_number == num_warm_up:
                counts.rss_before = survivors_rss(stack)
            for name in RESTARTED:
                _restart(stack, name, gently=bool(round_number % 2))
                counts.restarts[name] += 1
        counts.rss_after = survivors_rss(stack)
    finally:
        clients.stop()
    return counts


def _restart(stack: LocalStack, name: str, gently: bool) -> None:
    """Returns when the new life has computed something."""
    address = stack.worker_addresses[name]
    if gently:
        pid = stack.pids[name]
        os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + 60
        while name in stack.pids:
            assert time.monotonic() < deadline_s, f"{name} does not leave"
            time.sleep(0.02)
        stack.check_running()
    assert stack.restart(name, same_port=True) == address
    deadline_s = time.monotonic() + 60
    while worker_stats(address).steps == 0:
        assert time.monotonic() < deadline_s, f"{name} is not used again"
        _forget_prefixes([other for other in stack.worker_addresses.values() if other != address])
        time.sleep(0.2)


def _forget_prefixes(addresses: Sequence[str]) -> None:
    """Who owns the most of a prompt is asked: a new life owns nothing, so the others must own nothing either."""
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            stub = worker_pb2_grpc.WorkerControlStub(channel)
            stub.ResetPrefixCache(worker_pb2.ResetPrefixCacheRequest(), timeout=30)


def survivors_rss(stack: LocalStack) -> dict[str, int]:
    """Resident bytes of each process that is never restarted, its engine core included."""
    found = {}
    for name, pid in stack.pids.items():
        if name not in (*RESTARTED, "redis"):
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
            found[name] = sum(member.memory_info().rss for member in family)
    return found
