"""The directory against a real redis-server: leases, ownership, and healing after outages, flushes and restarts."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from baton.directory.base import WorkerRecord, blocks_key, events_key, worker_key, workers_key
from baton.directory.reader import DirectoryReader
from baton.directory.registrar import WorkerRegistrar
from baton.errors import BatonError, ErrorCode
from baton.types import Role, WorkerRef
from tests.fakes.redis_server import RedisServer

FINGERPRINT = "feedc0de"
LEASE_S = 1.0  # a heartbeat every third of it may come late on a busy machine
HASHES = [bytes([i]) * 16 for i in range(8)]

Register = Callable[..., WorkerRegistrar]


@pytest.fixture
async def reader(server: RedisServer) -> AsyncIterator[DirectoryReader]:
    reader = DirectoryReader(server.url, FINGERPRINT)
    yield reader
    await reader.close()


@pytest.fixture
async def register(server: RedisServer) -> AsyncIterator[Register]:
    registrars = []

    def make(name: str = "d0", incarnation: str = "i0") -> WorkerRegistrar:
        registrars.append(WorkerRegistrar(server.url, record_of(name, incarnation), lease_s=LEASE_S))
        return registrars[-1]

    yield make
    for registrar in registrars:
        await registrar.close()


def record_of(name: str, incarnation: str) -> WorkerRecord:
    return WorkerRecord(WorkerRef(name, incarnation), Role.DECODE, "127.0.0.1:1", "m", FINGERPRINT, 16, 512, 100)


async def crash(registrar: WorkerRegistrar) -> None:
    """Ends the heartbeat without unregistering."""
    task = registrar._task
    assert task
    while not task.done():  # redis-py may lose a cancellation
        task.cancel()
        await asyncio.wait([task], timeout=0.02)


async def eventually(check: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.02)


def owned(server: RedisServer, worker: WorkerRef) -> set[bytes]:
    members = server.client.smembers(blocks_key(FINGERPRINT, worker))
    assert isinstance(members, set)
    return members


async def test_workers_come_and_go(server: RedisServer, register: Register, reader: DirectoryReader) -> None:
    assert await reader.workers() == []
    first, second = register("p0"), register("d0")
    await first.start()
    await second.start()
    assert await reader.workers() == [record_of("d0", "i0"), record_of("p0", "i0")]
    await first.close()
    await first.close()
    assert await reader.workers() == [record_of("d0", "i0")]
    await second.close()
    assert server.client.keys() == [events_key(FINGERPRINT).encode()]
    assert 0 < server.client.pttl(events_key(FINGERPRINT)) <= 12_000 * LEASE_S


async def test_prefixes_are_counted_up_to_the_first_gap(
    server: RedisServer, register: Register, reader: DirectoryReader
) -> None:
    registrars = [register(f"w{i}") for i in range(3)]
    for registrar, hashes in zip(registrars, (HASHES, [HASHES[0], HASHES[1], HASHES[3]], HASHES[1:]), strict=True):
        await registrar.start()
        registrar.update_blocks(hashes, [])
    workers = [WorkerRef(f"w{i}", "i0") for i in range(3)]
    unknown = WorkerRef("nobody", "i0")
    for registrar, count in zip(registrars, (8, 3, 7), strict=True):
        await eventually(lambda registrar=registrar, count=count: len(owned(server, registrar._worker)) == count)
    expected = {workers[0]: 8, workers[1]: 2, workers[2]: 0, unknown: 0}
    assert await reader.longest_prefixes(HASHES, [*workers, unknown]) == expected
    assert await reader.longest_prefixes([], workers) == dict.fromkeys(workers, 0)


async def test_changes_are_applied_in_order(server: RedisServer, register: Register) -> None:
    registrar = register()
    await registrar.start()
    for _ in range(20):
        registrar.update_blocks(HASHES[:4], [])
        registrar.update_blocks(HASHES[4:], HASHES[:2])
        registrar.update_blocks(HASHES[:1], HASHES[4:])
        await asyncio.sleep(0)
    expected = {HASHES[0], HASHES[2], HASHES[3]}
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == expected)


async def test_a_large_cache_is_written_in_pieces(server: RedisServer, register: Register) -> None:
    registrar = register()
    hashes = [i.to_bytes(16, "little") for i in range(10_000)]
    registrar.update_blocks(hashes, [])  # before the start
    await registrar.start()
    assert owned(server, WorkerRef("d0", "i0")) == set(hashes)
    registrar.update_blocks([], hashes[1:])
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == {hashes[0]})


async def test_the_lease_is_renewed_and_runs_out(
    server: RedisServer, register: Register, reader: DirectoryReader
) -> None:
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    await asyncio.sleep(2 * LEASE_S)
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))
    assert server.client.get(worker_key(FINGERPRINT, "d0")) is not None
    await crash(registrar)
    left = {workers_key(FINGERPRINT).encode(), events_key(FINGERPRINT).encode()}
    await eventually(lambda: set(server.client.keys()) == left)
    assert await reader.workers() == []
    assert server.client.smembers(workers_key(FINGERPRINT)) == set()  # the reader took the dead name off


async def test_a_flush_is_healed(server: RedisServer, register: Register, reader: DirectoryReader) -> None:
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))
    server.client.flushall()
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))
    assert await reader.workers() == [record_of("d0", "i0")]


async def test_a_partial_loss_is_healed(server: RedisServer, register: Register) -> None:
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))
    server.client.srem(blocks_key(FINGERPRINT, WorkerRef("d0", "i0")), *HASHES[:3])
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))


@pytest.mark.parametrize("foreign", ["string", "list"])
@pytest.mark.parametrize("key", ["blocks", "record", "names"])
async def test_a_key_of_a_foreign_type_is_repaired(
    server: RedisServer, register: Register, reader: DirectoryReader, key: str, foreign: str
) -> None:
    worker = WorkerRef("d0", "i0")
    keys = {
        "blocks": blocks_key(FINGERPRINT, worker),
        "record": worker_key(FINGERPRINT, "d0"),
        "names": workers_key(FINGERPRINT),
    }
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    await eventually(lambda: owned(server, worker) == set(HASHES))
    with server.client.pipeline() as pipe:  # at once: the heartbeat comes every 0.2 s
        pipe.delete(keys[key])
        pipe.set(keys[key], "x") if foreign == "string" else pipe.lpush(keys[key], "x")
        pipe.execute()

    def healed() -> bool:
        kinds = [server.client.type(keys[name]) for name in ("blocks", "record", "names")]
        record = msgspec.json.encode(record_of("d0", "i0"))
        return kinds == [b"set", b"string", b"set"] and server.client.get(keys["record"]) == record

    await eventually(healed)
    assert await reader.workers() == [record_of("d0", "i0")]
    assert await reader.longest_prefixes(HASHES, [worker]) == {worker: len(HASHES)}


async def test_changes_over_a_key_of_a_foreign_type_are_not_lost(server: RedisServer, register: Register) -> None:
    registrar = register()
    await registrar.start()
    server.client.set(blocks_key(FINGERPRINT, WorkerRef("d0", "i0")), "x")
    registrar.update_blocks(HASHES, [])
    key = blocks_key(FINGERPRINT, WorkerRef("d0", "i0"))
    await eventually(lambda: server.client.type(key) == b"set" and owned(server, WorkerRef("d0", "i0")) == set(HASHES))


async def test_a_key_of_a_foreign_type_spoils_only_its_own_workers_look_up(
    server: RedisServer, register: Register, reader: DirectoryReader
) -> None:
    good, bad = WorkerRef("d0", "i0"), WorkerRef("nobody", "i0")
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    await eventually(lambda: owned(server, good) == set(HASHES))
    server.client.set(blocks_key(FINGERPRINT, bad), "x")
    assert await reader.longest_prefixes(HASHES, [bad, good]) == {bad: 0, good: len(HASHES)}


async def test_an_outage_is_survived_and_logged_once(
    server: RedisServer, register: Register, reader: DirectoryReader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES[:4], [])
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES[:4]))
    server.stop()
    for _ in range(6):
        registrar.update_blocks(HASHES[4:], HASHES[:1])  # neither waits nor fails
        await asyncio.sleep(LEASE_S / 2)
    with pytest.raises(BatonError) as raised:
        await reader.workers()
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert await reader.longest_prefixes(HASHES, [WorkerRef("d0", "i0")]) == {}
    server.start()
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES[1:]))
    assert await reader.workers() == [record_of("d0", "i0")]
    by_logger = [entry.name.rpartition(".")[2] for entry in caplog.records if "does not answer" in entry.message]
    assert sorted(by_logger) == ["reader", "registrar"]


async def test_a_worker_starts_while_redis_is_down(server: RedisServer, register: Register) -> None:
    server.stop()
    registrar = register()
    await registrar.start()
    registrar.update_blocks(HASHES, [])
    server.start()
    await eventually(lambda: owned(server, WorkerRef("d0", "i0")) == set(HASHES))


async def test_closing_while_redis_is_down_is_quick(server: RedisServer, register: Register) -> None:
    registrar = register()
    await registrar.start()
    server.stop()
    started_s = time.monotonic()
    await registrar.close()
    assert time.monotonic() - started_s < 4


async def test_a_hung_redis_costs_a_second_at_most(reader: DirectoryReader) -> None:
    with_nobody_answering = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = with_nobody_answering.sockets[0].getsockname()[1]
    hung = DirectoryReader(f"redis://127.0.0.1:{port}/0", FINGERPRINT)
    started_s = time.monotonic()
    assert await hung.longest_prefixes(HASHES, [WorkerRef("d0", "i0")]) == {}
    assert time.monotonic() - started_s < 3
    await hung.close()
    with_nobody_answering.close()


async def test_a_cancelled_reader_stops_at_once(reader: DirectoryReader) -> None:
    async def read_on() -> None:
        while True:
            await reader.longest_prefixes(HASHES, [WorkerRef("d0", "i0")])

    for i in range(50):
        task = asyncio.create_task(read_on())
        await asyncio.sleep(0.001 + i * 0.0001)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=1)
        assert done


async def test_a_restart_under_the_same_name_owns_nothing(
    server: RedisServer, register: Register, reader: DirectoryReader
) -> None:
    old = register("d0", "old")
    await old.start()
    old.update_blocks(HASHES, [])
    await eventually(lambda: owned(server, WorkerRef("d0", "old")) == set(HASHES))
    await crash(old)
    new = register("d0", "new")
    await new.start()
    assert await reader.workers() == [record_of("d0", "new")]
    assert await reader.longest_prefixes(HASHES, [WorkerRef("d0", "new")]) == {WorkerRef("d0", "new"): 0}
    await old.close()  # a late good-bye of the old one leaves the new one's entry alone
    assert await reader.workers() == [record_of("d0", "new")]
    assert owned(server, WorkerRef("d0", "old")) == set()


async def test_a_name_that_registers_again_meanwhile_is_left_alone(
    server: RedisServer, reader: DirectoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client.sadd(workers_key(FINGERPRINT), "d0", "d1")  # their records have expired
    make_pipeline, made = reader._redis.pipeline, []

    def pipeline(**options: Any) -> Any:
        made.append(1)
        if len(made) == 3:  # names, records, and now the dead ones are taken off
            server.client.set(worker_key(FINGERPRINT, "d0"), msgspec.json.encode(record_of("d0", "i1")))
        return make_pipeline(**options)

    monkeypatch.setattr(reader._redis, "pipeline", pipeline)
    assert await reader.workers() == []
    assert server.client.smembers(workers_key(FINGERPRINT)) == {b"d0"}
    assert await reader.workers() == [record_of("d0", "i1")]


async def test_a_record_of_an_older_worker_is_read(server: RedisServer, reader: DirectoryReader) -> None:
    fields = msgspec.to_builtins(record_of("d0", "i0"))
    del fields["kv_dtype"]
    server.client.sadd(workers_key(FINGERPRINT), "d0")
    server.client.set(worker_key(FINGERPRINT, "d0"), msgspec.json.encode(fields))
    assert await reader.workers() == [record_of("d0", "i0")]


async def test_a_malformed_record_is_ignored(
    server: RedisServer, register: Register, reader: DirectoryReader, caplog: pytest.LogCaptureFixture
) -> None:
    await register().start()
    server.client.sadd(workers_key(FINGERPRINT), "bad")
    server.client.set(worker_key(FINGERPRINT, "bad"), msgspec.json.encode({"worker": 3}))
    assert await reader.workers() == [record_of("d0", "i0")]
    assert "malformed record of worker bad" in caplog.text


async def test_a_name_that_is_no_text_is_removed(
    server: RedisServer, register: Register, reader: DirectoryReader
) -> None:
    await register().start()
    server.client.sadd(workers_key(FINGERPRINT), b"\xff\xfe")
    assert await reader.workers() == [record_of("d0", "i0")]
    assert server.client.smembers(workers_key(FINGERPRINT)) == {b"d0"}


def test_a_wrong_url_is_named() -> None:
    with pytest.raises(BatonError, match="expected redis://") as raised:
        DirectoryReader("localhost:6379", FINGERPRINT)
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
