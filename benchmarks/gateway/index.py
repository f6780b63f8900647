"""Routing decisions on the index of owned blocks, block events followed from a real Redis, and the index's memory.

A decision has all of it: hashing the prompt, looking its prefix up, pricing the workers. Half of the workers prefill.
They own prefixes of different lengths, or, the worst case, all of the prompt. `prompt_seen`: this gateway has hashed it
before.
Run on a machine that does nothing else: python benchmarks/gateway/index.py
"""

import argparse
import asyncio
import itertools
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from baton.block_hash import block_hashes
from baton.directory.base import WorkerRecord
from baton.directory.followed import FollowedDirectory
from baton.directory.index import OwnerIndex
from baton.directory.registrar import WorkerRegistrar
from baton.types import Role, WorkerRef
from benchmarks import record
from gateway.config import Limits
from gateway.pool import Pool
from gateway.prompt_hashes import PromptHashes
from gateway.router import PolicyRouter
from gateway.routing.registry import make_policy
from tests.fakes.redis_server import RedisServer

_BLOCK = 16


class _Worker:
    avoided = False

    def __init__(self, number: int, role: Role) -> None:
        self.name, self.in_flight = f"w{number}", number % 5
        self.ref = WorkerRef(self.name, "1")
        self.record = WorkerRecord(self.ref, role, "", "m", "bench", _BLOCK, 65_536, 20_000)


class _Pool:
    def __init__(self, workers: list[_Worker]) -> None:
        self._by_role = {role: [worker for worker in workers if worker.record.role is role] for role in Role}

    def workers(self, role: Role) -> list[_Worker]:
        return self._by_role[role]


class _Directory:
    def __init__(self, index: OwnerIndex) -> None:
        self._index = index

    async def longest_prefixes(self, hashes: Any, workers: Any) -> dict[WorkerRef, int]:
        return self._index.longest_prefixes(hashes, workers)


class _Forgetful(PromptHashes):
    def of(self, token_ids: Any, block_size: int) -> list[bytes]:
        self._pieces.clear()
        return super().of(token_ids, block_size)


async def decisions_ms(
    policy: str, num_tokens: int, num_workers: int, all_owned: bool, seen: bool, times: int
) -> list[float]:
    """Of each decision, sorted. `seen`: the gateway has hashed the prompt before."""
    chance, index = random.Random(1), OwnerIndex()
    workers = [_Worker(i, Role.PREFILL if i % 2 else Role.DECODE) for i in range(num_workers)]
    prompts = [[chance.randrange(32_000) for _ in range(num_tokens)] for _ in range(16)]
    for prompt in prompts:
        hashes = block_hashes("bench", prompt, _BLOCK)
        for worker in workers:
            index.change(worker.ref, (), hashes if all_owned else hashes[: chance.randrange(len(hashes))])
    pool, directory = cast(Pool, _Pool(workers)), cast(Any, _Directory(index))
    router = PolicyRouter(pool, directory, "bench", Limits(), make_policy(policy))
    if not seen:
        router._hashes = _Forgetful("bench")
    taken = []
    for turn in range(times):
        prompt = prompts[turn % len(prompts)]
        start_s = time.perf_counter()
        decision = await router.decide(prompt)
        taken.append((time.perf_counter() - start_s) * 1000)
        if decision.claim is not None:
            decision.claim.dropped()
    return sorted(taken)


async def followed_per_s(seconds: float, blocks_a_change: int) -> tuple[float, float]:
    """Block events (a block stored or removed) that a gateway has followed in a second, and its share of a core.

    Workers write in this process too, so a gateway in a process of its own would follow more.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        gateway = FollowedDirectory(server.url, "bench")
        registrars = []
        for number in range(8):
            worker = _Worker(number, Role.DECODE)
            registrar = WorkerRegistrar(server.url, worker.record)
            await registrar.start()
            registrars.append(registrar)
        await gateway.workers()
        await asyncio.sleep(1.0)
        start_s, cpu_s, sent = time.perf_counter(), time.process_time(), 0
        number = 0
        while time.perf_counter() - start_s < seconds:
            for registrar in registrars:
                new = [(number + i).to_bytes(16, "little") for i in range(blocks_a_change)]
                registrar.update_blocks(new, [])
                number, sent = number + blocks_a_change, sent + blocks_a_change
            await asyncio.sleep(0.002)
        async with asyncio.timeout(4 * seconds):
            while len(gateway.follower.index) < number:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
        taken_s = time.perf_counter() - start_s
        share = (time.process_time() - cpu_s) / taken_s
        for registrar in registrars:
            await registrar.close()
        await gateway.close()
        server.close()
    return sent / taken_s, share


def mib_per_million(num_hashes: int, num_owners: int) -> float:
    """Resident memory of the index, hashes included, by a million of different blocks."""
    process, index = psutil.Process(), OwnerIndex()
    before = process.memory_info().rss
    owners = [WorkerRef(f"w{i}", "1") for i in range(num_owners)]
    for start in range(0, num_hashes, 1000):
        index.change(owners[start // 1000 % num_owners], (), [os.urandom(16) for _ in range(1000)])
    return (process.memory_info().rss - before) / (1 << 20) / (num_hashes / 1e6)


def main() -> int:
    """1 when a figure misses what it should reach."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--times", type=int, default=2000, help="decisions (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of block events (%(default)s)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()
    params: dict[str, Any] = {"tokens": options.tokens, "workers": options.workers}
    million = mib_per_million(1_000_000, options.workers)
    lines = [record.result("index_mib_per_million_blocks", "none", {"workers": options.workers}, million, "MiB")]
    missed = 0
    for policy, owned, seen in itertools.product(("prefix", "cost"), ("shares", "all"), (True, False)):
        work = decisions_ms(policy, options.tokens, options.workers, owned == "all", seen, options.times)
        taken = asyncio.run(work)
        for percentile, wanted_ms in ((50, 1.0), (99, 3.0)):
            value = taken[min(len(taken) - 1, len(taken) * percentile // 100)]
            missed += value > wanted_ms
            more = {**params, "policy": policy, "owned": owned, "prompt_seen": seen, "percentile": percentile}
            lines.append(record.result("prefix_lookup_ms", "none", more, value, "ms"))
    for blocks in (1, 64):
        rate, share = asyncio.run(followed_per_s(options.seconds, blocks))
        more = {"blocks_a_change": blocks, "registrars": 8}
        lines.append(record.result("block_events_followed_s", "none", more, rate, "1/s"))
        print(f"{blocks} blocks a change: {share:.2f} of a core, registrars included")
        missed += blocks > 1 and rate < 10_000
    for line in lines:
        print(line["metric"], line["params"], f"{line['value']:.3f}", line["unit"])
    if not options.no_record:
        print(f"wrote {record.write('gateway_index', lines)}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
