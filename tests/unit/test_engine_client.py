"""The engine client against a real child process: streams, batches, aborts, and every way the core can end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from baton.block_hash import block_hashes
from baton.errors import BatonError, ErrorCode
from baton.types import FinishReason, Role, SamplingParams, WorkerRef
from engine import client as client_module
from engine.client import EngineClient
from engine.config import EngineConfig, LeaseConfig
from engine.event_stream import EventStream, StreamEvent
from engine.messages import (
    Aborted,
    AddLocal,
    AddPrefill,
    Admitted,
    Failed,
    Finished,
    Granted,
    Refused,
    Release,
    Reserve,
    Tokens,
)

FAKE_CORE = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "engine_core.py"))
CONFIG = EngineConfig("/models/m", Role.AGGREGATED, WorkerRef("w0", "i0"))
PROMPT = tuple(range(100, 140))
LONG = SamplingParams(max_tokens=100_000)

Start = Callable[..., Awaitable[EngineClient]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    clients = []

    async def start_client(*arguments: str, config: EngineConfig = CONFIG) -> EngineClient:
        clients.append(await EngineClient.start(config, (*FAKE_CORE, *arguments)))
        return clients[-1]

    yield start_client
    for client in clients:
        await client.close()


async def take(stream: EventStream, count: int) -> list[StreamEvent]:
    return [await anext(stream) for _ in range(count)]


async def rest(stream: EventStream) -> list[StreamEvent]:
    return [event async for event in stream]


def tokens_of(events: list[StreamEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Tokens) for token in event.token_ids]


async def test_a_local_request_streams_until_finished(start: Start) -> None:
    client = await start()
    assert (client.ready.num_blocks, client.ready.max_model_len) == (100, 512)
    events = await rest(client.submit(AddLocal("r", 0, PROMPT, SamplingParams(max_tokens=3))))
    assert tokens_of(events) == [140, 141, 142]
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.LENGTH


async def test_many_requests_are_dealt_out_in_order(start: Start) -> None:
    client = await start("--step-ms", "0")
    streams = [client.submit(AddLocal(f"r{i}", i, (i * 1000,), SamplingParams(max_tokens=20))) for i in range(50)]
    for i, events in enumerate(await asyncio.gather(*map(rest, streams))):
        assert tokens_of(events) == list(range(i * 1000 + 1, i * 1000 + 21))


async def test_a_first_token_that_ends_the_request_comes_with_its_end(start: Start) -> None:
    client = await start()
    granted = await anext(client.submit(Reserve("r", 0, PROMPT, LONG)))
    assert isinstance(granted, Granted)
    stream = client.submit(AddPrefill("p", 0, PROMPT, SamplingParams(max_tokens=1), granted.grant))
    assert isinstance(await anext(stream), Tokens)
    (end,) = stream.pending()
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH
    assert await rest(stream) == [end]


async def test_a_reservation_runs_once_its_kv_has_arrived(start: Start) -> None:
    client = await start()
    stream = client.submit(Reserve("r", 4, PROMPT, SamplingParams(max_tokens=3)))
    granted = await anext(stream)
    assert isinstance(granted, Granted)
    await rest(client.submit(AddPrefill("p", 4, PROMPT, LONG, granted.grant)))
    admitted, *events = await rest(stream)
    assert isinstance(admitted, Admitted)
    assert tokens_of(events) == [141, 142]


async def test_a_refusal_ends_the_stream(start: Start) -> None:
    client = await start("--max-grants", "0")
    (refused,) = await rest(client.submit(Reserve("r", 0, PROMPT, LONG)))
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_s) == (ErrorCode.RESOURCE_EXHAUSTED, 0.25)


async def test_a_grant_nobody_uses_fails_with_its_lease(start: Start) -> None:
    config = EngineConfig("/models/m", Role.DECODE, WorkerRef("w0", "i0"), lease=LeaseConfig(lease_s=0.05))
    client = await start(config=config)
    granted, failed = await rest(client.submit(Reserve("r", 0, PROMPT, LONG)))
    assert isinstance(granted, Granted)
    assert isinstance(failed, Failed)


async def test_an_open_attempt_is_not_taken_twice(start: Start) -> None:
    client = await start()
    client.submit(AddLocal("r", 0, PROMPT, LONG))
    with pytest.raises(BatonError, match="new epoch") as raised:
        client.submit(AddLocal("r", 0, PROMPT, LONG))
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    client.submit(AddLocal("r", 1, PROMPT, LONG))


async def test_abort_answers_its_caller_and_ends_the_stream(start: Start) -> None:
    client = await start()
    stream = client.submit(AddLocal("r", 0, PROMPT, LONG))
    await take(stream, 2)
    answers = await asyncio.gather(client.abort("r", 0), client.abort("r", 0))
    assert list(answers) == [Aborted("r", 0, True)] * 2
    assert (await rest(stream))[-1] == Aborted("r", 0, True)
    assert await client.abort("unknown", 3) == Aborted("unknown", 3, True)
    client.submit(AddLocal("r", 0, PROMPT, LONG))  # free again


async def test_release_gives_a_grant_back(start: Start) -> None:
    client = await start()
    stream = client.submit(Reserve("r", 0, PROMPT, LONG))
    granted = await anext(stream)
    assert isinstance(granted, Granted)
    assert (await client.stats()).stats.grants == 1
    client.send(Release(granted.grant.grant_id, fenced=True))
    assert await rest(stream) == [Aborted("r", 0, True)]
    assert (await client.stats()).stats.grants == 0


async def test_stats_report_problems_only_when_checked(start: Start) -> None:
    client = await start("--problem", "block 3 is owned twice")
    assert (await client.stats()).problems == ()
    assert (await client.stats(check=True)).problems == ("block 3 is owned twice",)


async def test_a_reset_says_how_many_blocks_were_dropped(start: Start) -> None:
    client = await start()
    assert await asyncio.gather(client.reset_prefix_cache(), client.reset_prefix_cache()) == [11, 11]


async def test_cache_changes_reach_the_callback(start: Start) -> None:
    client = await start()
    changes = []
    client.on_cache_change = lambda stored, removed: changes.append((stored, removed))
    await rest(client.submit(AddLocal("r", 0, PROMPT, SamplingParams(max_tokens=1))))
    assert changes == [(tuple(block_hashes("feedc0de", PROMPT, 16)), ())]


async def test_a_refused_start_says_why_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BatonError) as raised:
        await EngineClient.start(CONFIG, (*FAKE_CORE, "--refuse", "the KV pool is too small; raise --kv-cache-bytes"))
    assert raised.value.code is ErrorCode.FAILED_PRECONDITION
    expected = "did not start: it died (exit code 1): the KV pool is too small; raise --kv-cache-bytes"
    assert raised.value.message.endswith(expected)
    assert "too small" not in capfd.readouterr().err  # whoever shows the error would show it twice


async def test_the_cores_log_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; sys.stderr.write('a line\\n' + 'b' * 9000 + '\\nlast'); sys.exit(1)"
    with pytest.raises(BatonError, match="last"):
        await EngineClient.start(CONFIG, (sys.executable, "-c", script))
    assert capfd.readouterr().err == "a line\n" + "b" * 9000 + "\nlast"


async def test_a_crashed_start_shows_the_last_lines() -> None:
    with pytest.raises(BatonError, match="ZeroDivisionError"):
        await EngineClient.start(CONFIG, (sys.executable, "-c", "1/0"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "2000 None"), ({"GOMP_SPINCOUNT": "7"}, "7 None"), ({"OMP_WAIT_POLICY": "active"}, "None active")],
)
async def test_the_core_waits_briefly_in_barriers_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    script = "import os, sys; sys.exit(f\"got {os.getenv('GOMP_SPINCOUNT')} {os.getenv('OMP_WAIT_POLICY')}\")"
    with pytest.raises(BatonError, match=f"got {expected}"):
        await EngineClient.start(CONFIG, (sys.executable, "-c", script))


async def test_a_silent_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "START_TIMEOUT_S", 0.2)
    with pytest.raises(BatonError, match="not ready after"):
        await EngineClient.start(CONFIG, (sys.executable, "-c", "import time; time.sleep(60)"))


async def test_death_fails_everything_that_waits(start: Start) -> None:
    client = await start("--step-ms", "2")
    streams = [client.submit(AddLocal(f"r{i}", 0, PROMPT, LONG)) for i in range(3)]
    await take(streams[0], 1)
    os.kill(client.pid, signal.SIGSTOP)  # from here on nothing is answered
    waiters = [client.abort("r0", 0), client.stats(), client.reset_prefix_cache()]
    waiters = [asyncio.create_task(waiter) for waiter in waiters]
    await asyncio.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    assert "died (signal 9, SIGKILL)" in await client.wait_dead()
    for stream in streams:
        last = (await rest(stream))[-1]
        assert isinstance(last, Failed)
        assert last.code is ErrorCode.UNAVAILABLE
        assert "engine core of worker w0 died (signal 9, SIGKILL)" in last.message
    for outcome in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(outcome, BatonError)
        assert outcome.code is ErrorCode.UNAVAILABLE
    with pytest.raises(BatonError, match="died"):
        client.submit(AddLocal("late", 0, PROMPT, LONG))
    client.send(Release("g", fenced=True))  # nothing to do, no error


async def test_close_ends_open_streams_and_is_idempotent(start: Start) -> None:
    client = await start()
    stream = client.submit(AddLocal("r", 0, PROMPT, LONG))
    await asyncio.gather(client.close(), client.close())
    await client.close()
    assert "was shut down (exit code 0)" in await client.wait_dead()
    assert isinstance((await rest(stream))[-1], Failed)


async def test_a_deaf_core_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT_S", 0.2)
    client = await start("--deaf")
    await client.close()
    assert "signal 9" in await client.wait_dead()


async def test_a_malformed_message_is_fatal_and_named() -> None:
    script = (
        "import socket, struct, sys, time; s = socket.socket(fileno=int(sys.argv[2])); s.recv(4096);"
        "s.sendall(struct.pack('<I', 3) + b'bad'); time.sleep(60)"
    )
    with pytest.raises(BatonError, match="malformed message"):
        await EngineClient.start(CONFIG, (sys.executable, "-c", script))
