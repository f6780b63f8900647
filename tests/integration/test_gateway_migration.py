"""A decode worker wants to be rid of a request: the gateway has it moved, and no client notices, however it ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError, ErrorCode
from baton.rpc import worker_pb2
from baton.types import Role
from gateway.config import Limits
from tests.fakes.gateway_stack import ANSWER, Stack, eventually, ids_of, running_stack
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import admitted, decode_of, finished, hang, move_wanted, moved, tokens

ROLES = [("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]
MOVED = worker_pb2.MigrateResponse(moved=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


class Source:
    """Decode worker d0: draws two tokens, wants to be rid of the request, and does what the test says."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.asked = asyncio.Event()  # set: Migrate has come
        self.go_on = asyncio.Event()  # set by the test: the rest of the stream
        self.rest: list[worker_pb2.DecodeEvent] = []
        self.answer = MOVED
        self.answers = asyncio.Event()
        self.answers.set()
        stack.decode.script = self.script
        stack.decode.migrate = self.migrate

    async def script(self, request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(1, *ANSWER[1:3])
        yield move_wanted()
        await self.go_on.wait()
        for event in self.rest:
            yield event

    async def migrate(self) -> worker_pb2.MigrateResponse:
        self.asked.set()
        await self.answers.wait()
        return self.answer


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model, ROLES, Limits(poll_interval_s=60, cleanup_timeout_s=2)) as running:
        yield running


@pytest.fixture
async def source(stack: Stack) -> Source:
    return Source(stack)


async def rest_of_answer(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
    """A worker that goes on behind the fourth token."""
    yield admitted()
    yield tokens(4, ANSWER[4])
    yield finished()


def target(stack: Stack) -> Any:
    return stack.workers["d1"].decode


async def test_tokens_of_both_workers_make_one_answer(stack: Stack, source: Source) -> None:
    """The second one's come first, and nothing is said twice."""
    source.rest = [tokens(3, ANSWER[3]), moved(4)]

    async def go_on(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        await source.asked.wait()
        yield admitted()
        yield tokens(4, ANSWER[4])
        yield finished()
        source.go_on.set()

    target(stack).script = go_on
    responses = await stack.generate()
    assert ids_of(responses) == ANSWER
    assert (responses[-1].hand_over.prefill_worker, responses[-1].hand_over.decode_worker) == ("p0", "d1")
    assert responses[-1].hand_over.blocks == 3  # of the hand-over from prefill
    (reserve,), (migrate,) = target(stack).reserves, stack.decode.migrations
    assert list(reserve.output_token_ids) == ANSWER[:3]
    assert (reserve.epoch, reserve.num_extra_tokens) == (2, 64)
    assert (migrate.epoch, migrate.grant.epoch, migrate.grant.grant_id) == (1, 2, "grant-1")
    assert migrate.num_reserved_tokens == len(reserve.prompt_token_ids) + 3
    assert [request.grant_id for request in target(stack).requests] == ["grant-1"]
    await stack.quiet()
    assert target(stack).releases == stack.decode.releases == stack.prefill.cancels == []


@pytest.mark.parametrize("fenced", [True, False])
async def test_what_is_not_moved_goes_on_where_it_is(stack: Stack, source: Source, fenced: bool) -> None:
    source.answer = worker_pb2.MigrateResponse(moved=False, fenced=fenced, problem="a write failed")
    source.rest = [tokens(3, *ANSWER[3:]), finished()]
    target(stack).script = hang
    asking = asyncio.create_task(stack.generate())
    await eventually(lambda: target(stack).releases)
    source.go_on.set()
    responses = await asking
    assert ids_of(responses) == ANSWER
    assert responses[-1].hand_over.decode_worker == "d0"
    assert [(one.grant_id, one.epoch, one.fenced) for one in target(stack).releases] == [("grant-1", 2, fenced)]
    await stack.quiet()


async def test_without_room_elsewhere_it_stays_until_it_is_asked_again(stack: Stack, source: Source) -> None:
    target(stack).refusals = [BatonError(ErrorCode.RESOURCE_EXHAUSTED, "full", 0.1)]
    target(stack).script = rest_of_answer

    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(1, *ANSWER[1:3])
        yield move_wanted()
        await source.go_on.wait()
        yield tokens(3, ANSWER[3])
        yield move_wanted()
        await source.asked.wait()
        yield moved(4)

    stack.decode.script = script
    asking = asyncio.create_task(stack.generate())
    await eventually(lambda: target(stack).reserves)
    source.go_on.set()
    assert ids_of(await asking) == ANSWER
    assert [request.epoch for request in target(stack).reserves] == [2, 3]
    await stack.quiet()


async def test_a_source_that_has_moved_it_unasked_is_not_believed(stack: Stack, source: Source) -> None:
    """An answer to Migrate that was lost looks the same."""
    source.rest = [moved(3)]
    source.answer = worker_pb2.MigrateResponse(moved=False, fenced=False, problem="the answer is lost")
    target(stack).script = rest_of_answer
    asking = asyncio.create_task(stack.generate())
    await eventually(source.asked.is_set)
    source.go_on.set()
    assert ids_of(await asking) == ANSWER
    assert [request.epoch for request in target(stack).reserves] == [2, 3]


async def test_a_client_that_leaves_meanwhile_leaves_no_grant_behind(stack: Stack, source: Source) -> None:
    source.answers.clear()
    target(stack).script = hang
    call = stack.stream()
    await eventually(source.asked.is_set)
    call.cancel()
    await eventually(lambda: not stack.decode.open_streams)  # so the source knows, and stops writing
    assert target(stack).releases == []
    source.answer = worker_pb2.MigrateResponse(moved=False, fenced=True, problem="it was cancelled")
    source.answers.set()
    await stack.quiet()
    assert [one.fenced for one in target(stack).releases] == [True]


async def test_a_source_that_dies_meanwhile_is_replaced_by_replay(stack: Stack, source: Source) -> None:
    source.answers.clear()
    target(stack).script = hang
    asking = asyncio.create_task(stack.generate())
    await eventually(source.asked.is_set)
    target(stack).script = rest_of_answer
    await stack.workers["d0"].die()
    assert ids_of(await asking) == ANSWER
    assert [request.epoch for request in target(stack).reserves] == [2, 3]
    await eventually(lambda: target(stack).releases)
    assert [(one.grant_id, one.fenced) for one in target(stack).releases] == [("grant-1", False)]


async def test_a_target_that_dies_later_is_replaced_by_replay(stack: Stack, source: Source) -> None:
    source.rest = [moved(3)]
    source.go_on.set()

    async def some(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(3, ANSWER[3])
        await asyncio.Event().wait()

    target(stack).script = some
    stream = stack.stream()
    got: list[int] = []
    while len(got) < 4:
        got += (await stream.read()).token_ids
    stack.decode.script = decode_of(ANSWER)
    await stack.workers["d1"].die()
    responses = await stack.read_all(stream)
    assert got + ids_of(responses) == ANSWER
    assert [request.epoch for request in stack.decode.reserves] == [1, 3]
    assert responses[-1].hand_over.decode_worker == "d0"


async def test_an_aggregated_worker_is_not_asked_to_move(model: Path) -> None:
    async with running_stack(model, [("a0", Role.AGGREGATED), ("a1", Role.AGGREGATED)]) as stack:

        async def wants_to_move(request: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
            yield tokens(0, *ANSWER[:2])
            yield move_wanted()
            yield tokens(2, *ANSWER[2:])
            yield finished()

        stack.workers["a0"].decode.script = wants_to_move
        assert ids_of(await stack.generate()) == ANSWER
        assert stack.workers["a0"].decode.migrations == stack.workers["a1"].decode.reserves == []
