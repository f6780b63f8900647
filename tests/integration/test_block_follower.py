"""The index of owned blocks against a real redis-server: followed, healed after every loss, shared, and bounded."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest

from baton.directory import events
from baton.directory.base import WorkerRecord, blocks_key, events_key, sequence_key
from baton.directory.followed import FollowedDirectory
from baton.directory.registrar import WorkerRegistrar
from baton.errors import BatonError
from baton.types import Role, WorkerRef
from tests.fakes.gateway_stack import eventually
from tests.fakes.redis_cluster import RedisCluster
from tests.fakes.redis_server import RedisServer

FINGERPRINT = "feedc0de"
LEASE_S = 1.0
HASHES = [bytes([i]) * 16 for i in range(8)]
W0, W1 = WorkerRef("w0", "i0"), WorkerRef("w1", "i0")


class Follow:
    """Registrars and gateways of one test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[WorkerRegistrar | FollowedDirectory] = []
        self._polls: list[asyncio.Task[None]] = []

    async def worker(self, ref: WorkerRef = W0, hashes: list[bytes] = HASHES) -> WorkerRegistrar:
        record = WorkerRecord(ref, Role.DECODE, "127.0.0.1:1", "m", FINGERPRINT, 16, 512, 100)
        registrar = WorkerRegistrar(self.url, record, lease_s=LEASE_S)
        self._opened.append(registrar)
        await registrar.start()
        registrar.update_blocks(hashes, [])
        return registrar

    def gateway(self) -> FollowedDirectory:
        """Looks for workers all the time, as a pool does."""
        directory = FollowedDirectory(self.url, FINGERPRINT)
        self._opened.append(directory)
        self._polls.append(asyncio.create_task(_poll(directory)))
        return directory

    async def close(self) -> None:
        for task in self._polls:
            task.cancel()
        for opened in self._opened:
            await opened.close()


async def _poll(directory: FollowedDirectory) -> None:
    while True:
        with contextlib.suppress(BatonError):  # as a pool, which keeps what it knows
            await directory.workers()
        await asyncio.sleep(0.1)


@pytest.fixture
async def follow(server: RedisServer) -> AsyncIterator[Follow]:
    follow = Follow(server.url)
    yield follow
    await follow.close()


async def owns(directory: FollowedDirectory, count: int, ref: WorkerRef = W0, within_s: float = 10.0) -> None:
    follower = directory.follower
    await eventually(lambda: follower.longest_prefixes(HASHES, [ref]).get(ref, 0) == count, within_s)


async def test_changes_are_followed_by_every_gateway(follow: Follow) -> None:
    first, second = follow.gateway(), follow.gateway()
    worker = await follow.worker(hashes=HASHES[:3])
    for gateway in (first, second):
        await owns(gateway, 3)
    resyncs = first.follower.num_resyncs
    worker.update_blocks(HASHES[3:], [])
    for gateway in (first, second):
        await owns(gateway, 8)
    worker.update_blocks([], HASHES[5:6])
    for gateway in (first, second, follow.gateway()):
        await owns(gateway, 5)
    assert first.follower.num_resyncs == resyncs  # by events alone
    assert await first.longest_prefixes(HASHES, [W0, W1]) == {W0: 5, W1: 0}


async def test_a_flush_heals(follow: Follow, server: RedisServer) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    server.client.flushall()
    worker.update_blocks([], HASHES[4:5])
    await owns(gateway, 4)
    worker.update_blocks(HASHES[4:5], [])
    await owns(gateway, 8)


async def test_a_restart_heals(follow: Follow, server: RedisServer) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    server.stop()
    worker.update_blocks([], HASHES[4:5])
    server.start()
    await owns(gateway, 4)
    worker.update_blocks(HASHES[4:5], [])
    await owns(gateway, 8)


async def test_a_long_outage_is_misses_and_then_heals(
    follow: Follow, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.directory.follower._STALE_S", 1.0)
    gateway = follow.gateway()
    await follow.worker()
    await owns(gateway, 8)
    server.stop()
    await eventually(lambda: gateway.follower.longest_prefixes(HASHES, [W0]) == {})
    server.start()
    await owns(gateway, 8)


async def test_a_server_with_older_ids_is_followed(follow: Follow, server: RedisServer) -> None:
    """As after a failover to one whose clock is behind."""
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    future = "99999999999999-0"
    server.client.xadd(events_key(FINGERPRINT), {"x": "y"}, id=future)
    await eventually(lambda: gateway.follower._last_id == future.encode())
    server.client.delete(events_key(FINGERPRINT))
    worker.update_blocks([], HASHES[4:5])
    await owns(gateway, 4)
    assert gateway.follower._last_id < future.encode()


@pytest.mark.parametrize("loss", ["event", "stream", "all that the worker has there"])
async def test_a_gap_is_noticed(follow: Follow, server: RedisServer, loss: str) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    follower, resyncs = gateway.follower, gateway.follower.num_resyncs
    if loss == "event":
        worker._sequence += 1  # one that never arrives
    elif loss == "stream":
        server.client.delete(events_key(FINGERPRINT))
    else:
        server.client.delete(blocks_key(FINGERPRINT, W0), sequence_key(FINGERPRINT, W0))
    worker.update_blocks([], HASHES[6:7])
    await owns(gateway, 6)
    assert loss != "event" or follower.num_resyncs > resyncs


async def test_a_lost_last_event_is_noticed_without_another_one(follow: Follow, server: RedisServer) -> None:
    gateway = follow.gateway()
    await follow.worker()
    await owns(gateway, 8)
    gateway.follower._sequences[W0] -= 1
    gateway.follower.index.change(W0, HASHES[2:], [])
    await owns(gateway, 2)
    await owns(gateway, 8)


async def test_what_is_not_an_event_is_passed_over(follow: Follow, server: RedisServer) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    wrong = events.encode(events.BlockEvent("w0", "i0", 9, b"short"))
    for fields in ({"x": "y"}, {"e": "{"}, {"e": wrong}, {"e": events.encode([1, 2, 3])}):
        server.client.xadd(events_key(FINGERPRINT), fields)
    worker.update_blocks([], HASHES[4:5])
    await owns(gateway, 4)


@pytest.mark.parametrize("key", ["events", "sequence"])
async def test_a_key_of_a_foreign_type_is_repaired(follow: Follow, server: RedisServer, key: str) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    name = events_key(FINGERPRINT) if key == "events" else sequence_key(FINGERPRINT, W0)
    server.client.delete(name)
    server.client.hset(name, "x", "y")
    worker.update_blocks([], HASHES[4:5])
    await owns(gateway, 4)


async def test_a_worker_that_has_left_or_restarted_owns_nothing(follow: Follow) -> None:
    gateway, worker = follow.gateway(), await follow.worker()
    await owns(gateway, 8)
    await worker.close()
    await owns(gateway, 0)
    again = WorkerRef("w0", "i1")
    await follow.worker(again, HASHES[:1])
    await owns(gateway, 1, again)
    assert await gateway.longest_prefixes(HASHES, [W0]) == {W0: 0}


async def test_random_changes_arrive_as_they_are(follow: Follow, server: RedisServer) -> None:
    gateway, chance = follow.gateway(), random.Random(3)
    workers = {ref: await follow.worker(ref, []) for ref in (W0, W1)}
    keys = [i.to_bytes(16, "little") for i in range(3000)]
    there: dict[WorkerRef, set[bytes]] = {ref: set() for ref in workers}
    for turn in range(40):
        ref = chance.choice(list(workers))
        stored, removed = chance.sample(keys, 400), chance.sample(keys, 300)
        workers[ref].update_blocks(stored, removed)
        there[ref] = (there[ref] - set(removed)) | set(stored)
        if turn == 20:
            server.client.flushall()
        await asyncio.sleep(0.01)
    index = gateway.follower.index

    def same() -> bool:
        return all(
            bool(index.longest_prefixes([key], [ref])[ref]) == (key in there[ref]) for ref in there for key in keys
        )

    await eventually(same, 10.0)


async def test_the_stream_is_bounded(follow: Follow, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.directory.registrar.MAX_EVENTS", 100)
    worker = await follow.worker(hashes=[])
    for i in range(600):
        worker.update_blocks([i.to_bytes(16, "big")], [])
        if i % 3 == 0:
            await asyncio.sleep(0.001)
    key = sequence_key(FINGERPRINT, W0)
    last: Callable[[], int] = lambda: int(server.client.get(key) or 0)  # type: ignore[arg-type]  # noqa: E731
    await eventually(lambda: worker.lag_s == 0)
    assert last() == worker._sequence
    assert server.client.xlen(events_key(FINGERPRINT)) <= 200  # trimmed by whole nodes of 100


async def test_closing_is_quick_and_may_come_twice(follow: Follow) -> None:
    gateway = follow.gateway()
    await follow.worker()
    await owns(gateway, 8)
    async with asyncio.timeout(1):
        await gateway.close()
        await gateway.close()


async def test_a_redis_cluster_serves(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    follow = Follow(cluster.url)
    try:
        gateway, worker = follow.gateway(), await follow.worker()
        await owns(gateway, 8)
        worker.update_blocks([], HASHES[4:5])
        await owns(gateway, 4)
        node = cluster.node_of(events_key(FINGERPRINT))
        node.stop()
        worker.update_blocks(HASHES[4:5], [])
        await asyncio.sleep(0.5)
        node.start()
        await owns(gateway, 8, within_s=20.0)
        assert [record.worker for record in await gateway.workers()] == [W0]
        await worker.close()
        await owns(gateway, 0)
    finally:
        await follow.close()
        cluster.close()
