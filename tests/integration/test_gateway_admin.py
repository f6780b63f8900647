"""The admin service of a gateway in front of scripted workers: who may call it, and what it does."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from typer.testing import CliRunner

from baton.api_keys import ApiKey, hash_of, id_of, new_key, write_keys
from baton.cli.app import app
from baton.errors import BatonError, ErrorCode
from baton.rpc import admin_pb2, admin_pb2_grpc
from gateway.access.access import Access
from tests.fakes.gateway_stack import Stack, eventually, running_stack
from tests.fakes.text_model import write_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model) as running:
        yield running


@pytest.fixture
def log_levels() -> Iterator[None]:
    root, named = logging.getLogger(), logging.getLogger("gateway.pool")
    before = root.level, named.level
    yield
    root.setLevel(before[0])
    named.setLevel(before[1])


def admin(stack: Stack) -> admin_pb2_grpc.AdminStub:
    return admin_pb2_grpc.AdminStub(stack.channel)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


async def test_workers_with_state_and_load(stack: Stack) -> None:
    answer = await admin(stack).ListWorkers(admin_pb2.ListWorkersRequest())
    assert [entry.worker.name for entry in answer.workers] == ["p0", "d0"]
    assert {entry.state for entry in answer.workers} == {admin_pb2.WORKER_STATE_IN_USE}
    assert answer.workers[1].stats.requests_running == 2
    assert (answer.requests_queued, answer.answers_running, answer.answers_limit > 0) == (0, 0, True)
    await stack.workers["d0"].die()
    await stack.error(deadline_s=5.0)
    answer = await admin(stack).ListWorkers(admin_pb2.ListWorkersRequest())
    assert answer.workers[1].state == admin_pb2.WORKER_STATE_UNREACHABLE
    assert not answer.workers[1].HasField("stats")


async def test_drain_reaches_the_worker_that_was_named(stack: Stack) -> None:
    answer = await admin(stack).Drain(admin_pb2.AdminDrainRequest(worker="d0", timeout_s=3.0))
    assert answer.requests_open == 2
    assert [request.timeout_s for request in stack.workers["d0"].control.drains] == [3.0]
    assert stack.workers["p0"].control.drains == []
    await admin(stack).Drain(admin_pb2.AdminDrainRequest(worker="d0"))
    assert not stack.workers["d0"].control.drains[1].HasField("timeout_s")
    unknown = admin(stack).Drain(admin_pb2.AdminDrainRequest(worker="d7"))
    assert await code_of(unknown) is grpc.StatusCode.NOT_FOUND


async def test_a_worker_that_fails_does_not_keep_others_from_a_flush(stack: Stack) -> None:
    stack.workers["p0"].control.failure = BatonError(ErrorCode.UNAVAILABLE, "busy dying")
    answer = await admin(stack).FlushCache(admin_pb2.FlushCacheRequest())
    assert dict(answer.blocks) == {"d0": 30}
    assert "busy dying" in answer.failed["p0"]
    answer = await admin(stack).FlushCache(admin_pb2.FlushCacheRequest(workers=["d0"]))
    assert (dict(answer.blocks), dict(answer.failed)) == ({"d0": 30}, {})


@pytest.mark.usefixtures("log_levels")
async def test_log_levels(stack: Stack) -> None:
    await admin(stack).SetLogLevel(admin_pb2.SetLogLevelRequest(level="error"))
    answer = await admin(stack).SetLogLevel(admin_pb2.SetLogLevelRequest(level="DEBUG", logger="gateway.pool"))
    assert answer.before == "error"
    assert logging.getLogger("gateway.pool").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("gateway.orchestrator").isEnabledFor(logging.INFO)
    for bad in ({"level": "loud"}, {"level": "info", "logger": "no.such"}):
        call = admin(stack).SetLogLevel(admin_pb2.SetLogLevelRequest(**bad))
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert "no.such" not in logging.root.manager.loggerDict  # nobody makes loggers by asking for them


async def test_an_ordinary_key_may_not(model: Path, tmp_path: Path) -> None:
    chief, user = new_key(), new_key()
    entries = [
        ApiKey(name=n, id=id_of(k), sha256=hash_of(k), admin=n == "chief")
        for n, k in (("chief", chief), ("user", user))
    ]
    write_keys(tmp_path / "keys.json", entries)
    async with running_stack(model, api_keys=tmp_path / "keys.json") as stack:
        stub, channelz = admin(stack), channelz_pb2_grpc.ChannelzStub(stack.channel)
        calls = [
            lambda metadata: stub.ListWorkers(admin_pb2.ListWorkersRequest(), metadata=metadata),
            lambda metadata: stub.Drain(admin_pb2.AdminDrainRequest(worker="d0"), metadata=metadata),
            lambda metadata: stub.FlushCache(admin_pb2.FlushCacheRequest(), metadata=metadata),
            lambda metadata: stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="info"), metadata=metadata),
            lambda metadata: channelz.GetServers(channelz_pb2.GetServersRequest(), metadata=metadata),
        ]
        for call in calls:
            assert await code_of(call([])) is grpc.StatusCode.UNAUTHENTICATED
            assert await code_of(call([("authorization", f"Bearer {user}")])) is grpc.StatusCode.PERMISSION_DENIED
        assert stack.workers["d0"].control.drains == []
        for call in (calls[0], calls[4]):
            assert await call([("authorization", f"Bearer {chief}")])


def test_without_keys_only_this_machine_may() -> None:
    class Call:
        def __init__(self, peer: str) -> None:
            self._peer = peer

        def peer(self) -> str:
            return self._peer

    for own in ("ipv4:127.0.0.1:99", "ipv6:%5B::1%5D:99", "unix:/tmp/s"):
        Access(None).check_admin(Call(own))
    for other in ("ipv4:10.0.0.1:99", "ipv6:%5Bfe80::1%5D:99", "", "ipv4:127.0.0.1.example:1"):
        with pytest.raises(BatonError, match="this machine only"):
            Access(None).check_admin(Call(other))


async def test_channelz_shows_the_gateways_channels(stack: Stack) -> None:
    answer = await channelz_pb2_grpc.ChannelzStub(stack.channel).GetTopChannels(channelz_pb2.GetTopChannelsRequest())
    targets = {channel.data.target for channel in answer.channel}
    assert any(record.address in target for record in stack.directory.records for target in targets)


async def test_a_missing_channelz_package_does_not_keep_a_gateway_from_starting(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_channelz.v1", None)
    async with running_stack(model) as stack:
        await stack.generate()
        call = channelz_pb2_grpc.ChannelzStub(stack.channel).GetServers(channelz_pb2.GetServersRequest())
        assert await code_of(call) is grpc.StatusCode.UNIMPLEMENTED


async def test_the_command(stack: Stack) -> None:
    async def run(*words: str) -> str:
        arguments = ["workers", *words, "--gateway", f"127.0.0.1:{stack.port}"]
        result = await asyncio.to_thread(CliRunner(env={"COLUMNS": "160"}).invoke, app, arguments)
        return result.output

    shown = await run()
    assert all(word in shown for word in ("p0", "d0", "in_use", "90", "100", "0 requests wait"))
    assert "2 requests open" in await run("drain", "d0")
    assert "d0: 30 blocks dropped" in await run("flush")
    await eventually(lambda: stack.workers["d0"].control.drains)
