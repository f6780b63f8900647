"""Requests survive their workers: they go on elsewhere, no token twice or left out, or they end in clear words."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.errors import BatonError, ErrorCode, Reason
from baton.rpc import sampling_pb2, worker_pb2
from baton.types import FinishReason, Role
from gateway.text import TextCodec
from tests.fakes.gateway_stack import (
    ANSWER,
    PROMPT,
    FakeCollector,
    Stack,
    attributes,
    eventually,
    ids_of,
    running_stack,
)
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import (
    FakeWorker,
    admitted,
    decode_of,
    first_token,
    hang,
    prefill_done,
    prefill_of,
    tokens,
)

TWO_OF_EACH = [("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]
LENGTH, STOP = sampling_pb2.FINISH_REASON_LENGTH, sampling_pb2.FINISH_REASON_STOP
Sampling = sampling_pb2.SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model, TWO_OF_EACH) as running:
        yield running


def some_then_hang(answer: Sequence[int], upto: int) -> Any:
    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(1, *answer[1:upto])
        await asyncio.Event().wait()

    return script


async def hang_after_first(request: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
    yield first_token(ANSWER[0])
    await asyncio.Event().wait()


def failing(error: BatonError, times: int, then: Any) -> Any:
    left = [error] * times

    async def script(request: Any) -> AsyncIterator[Any]:
        if left:
            raise left.pop()
        async for event in then(request):
            yield event

    return script


async def read_tokens(stream: Any, count: int) -> list[Any]:
    responses = []
    while len(ids_of(responses)) < count:
        responses.append(await stream.read())
    return responses


async def test_decode_dies_in_mid_decode(stack: Stack) -> None:
    stack.decode.script = some_then_hang(ANSWER, 3)
    stream = stack.stream(sampling=Sampling(max_tokens=5, seed=7))
    responses = await read_tokens(stream, 3)
    await stack.workers["d0"].die()
    responses += await stack.read_all(stream)
    assert ids_of(responses) == ANSWER
    last = responses[-1]
    assert (last.finish_reason, last.usage.completion_tokens, last.usage.prompt_tokens) == (LENGTH, 5, len(PROMPT))
    assert last.hand_over.decode_worker == "d1"
    (reserve,) = stack.workers["d1"].decode.reserves
    both = [*stack.workers["p0"].prefill.requests, *stack.workers["p1"].prefill.requests]
    first, second = sorted(both, key=lambda request: request.epoch)
    assert (first.epoch, list(first.output_token_ids)) == (1, [])
    for replay in (reserve, second):
        assert (replay.request_id, replay.epoch) == (first.request_id, 2)
        assert list(replay.prompt_token_ids) == PROMPT
        assert list(replay.output_token_ids) == ANSWER[:3]
        assert replay.sampling == first.sampling
    await stack.quiet()


async def test_a_replay_prefers_the_worker_that_has_the_prefix(stack: Stack) -> None:
    """The directory says which one that is."""
    stack.workers["p0"].prefill.script, stack.workers["p1"].prefill.script = (prefill_of(ANSWER),) * 2
    stack.decode.script = some_then_hang(ANSWER, 2)
    stream = stack.stream()
    await read_tokens(stream, 2)
    ref = next(record.worker for record in stack.directory.records if record.worker.name == "p0")
    stack.directory.owned = {ref: 2}
    await stack.workers["d0"].die()
    assert (await stack.read_all(stream))[-1].hand_over.prefill_worker == "p0"


@pytest.mark.parametrize("script", [hang, hang_after_first])
async def test_prefill_dies(stack: Stack, script: Any) -> None:
    stack.prefill.script = script
    stack.decode.script = hang
    stream = stack.stream()
    await eventually(lambda: stack.prefill.requests and stack.decode.requests)
    responses = await read_tokens(stream, 0 if script is hang else 1)
    stack.decode.script = decode_of(ANSWER)
    await stack.workers["p0"].die()
    responses += await stack.read_all(stream)
    assert ids_of(responses) == ANSWER
    assert responses[-1].hand_over.prefill_worker == "p1"
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases == [worker_pb2.ReleaseRequest(grant_id="grant-1", epoch=1, fenced=False)]
    await stack.quiet()


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.NOT_FOUND])
async def test_a_digest_mismatch_is_tried_on_other_workers(stack: Stack, code: ErrorCode) -> None:
    stack.decode.script = failing(BatonError(code, "KV digest mismatch"), 9, hang)
    responses = await stack.generate()
    assert ids_of(responses) == ANSWER
    assert (responses[-1].hand_over.prefill_worker, responses[-1].hand_over.decode_worker) == ("p1", "d1")
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases[0].epoch == 1
    await stack.quiet()


async def test_the_failed_attempt_cannot_speak_any_more(stack: Stack) -> None:
    """Decode has failed before prefill's first token comes: the token of the next attempt counts."""
    speak = asyncio.Event()

    async def late(request: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
        await speak.wait()
        yield first_token(999)
        yield prefill_done()

    async def careful(request: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
        speak.set()
        await asyncio.sleep(0.1)
        yield first_token(ANSWER[0])
        yield prefill_done()

    stack.prefill.script, stack.workers["p1"].prefill.script = late, careful
    stack.decode.script = failing(BatonError(ErrorCode.UNAVAILABLE, "no KV arrived"), 1, hang)
    assert ids_of(await stack.generate()) == ANSWER
    await stack.quiet()


async def test_stop_strings_and_logprobs_go_on_across_a_death(stack: Stack, model: Path) -> None:
    answer = TextCodec(model).encode("the quick brown fox jumps over the lazy dog")
    cut = 2

    def logprob(token_id: int) -> sampling_pb2.TokenLogprobs:
        return sampling_pb2.TokenLogprobs(sampled=sampling_pb2.Logprob(token_id=token_id, logprob=-0.5))

    async def prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        position = len(request.output_token_ids)
        event = first_token(answer[position], position=position)
        event.first_token.logprobs.CopyFrom(logprob(answer[position]))
        yield event
        yield prefill_done()

    def decode(stop_at: int) -> Any:
        async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
            yield admitted()
            for position in range(1, stop_at):
                event = tokens(position, answer[position])
                event.tokens.logprobs.append(logprob(answer[position]))
                yield event
            await asyncio.Event().wait()

        return script

    for name in ("p0", "p1"):
        stack.workers[name].prefill.script = prefill
    stack.decode.script, stack.workers["d1"].decode.script = decode(cut), decode(len(answer))
    stream = stack.stream(sampling=Sampling(stop=["quick brown"], logprobs=0))
    responses = await read_tokens(stream, cut)
    await stack.workers["d0"].die()
    responses += await stack.read_all(stream)
    assert "".join(response.text for response in responses) == "the "
    ids = ids_of(responses)
    assert ids == answer[: len(ids)]
    assert len(ids) > cut
    assert [entry.sampled.token_id for response in responses for entry in response.logprobs] == ids
    assert (responses[-1].finish_reason, responses[-1].usage.completion_tokens) == (STOP, len(ids))
    await stack.quiet()


async def test_a_complete_output_needs_no_other_worker(stack: Stack) -> None:
    stack.decode.script = some_then_hang(ANSWER, 5)
    stream = stack.stream(sampling=Sampling(max_tokens=5))
    responses = await read_tokens(stream, 5)
    await stack.workers["d0"].die()
    responses += await stack.read_all(stream)
    assert (ids_of(responses), responses[-1].finish_reason) == (ANSWER, LENGTH)
    assert stack.workers["d1"].decode.reserves == []


async def test_attempts_are_bounded(model: Path) -> None:
    for max_attempts in (1, 2):
        async with running_stack(model, TWO_OF_EACH, max_attempts=max_attempts) as stack:
            mismatch = BatonError(ErrorCode.UNAVAILABLE, "KV digest mismatch")
            for name in ("d0", "d1"):
                stack.workers[name].decode.script = failing(mismatch, 9, hang)
            error = await stack.error()
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert ("gave up after 2 attempts: decode worker d1" in error.details()) is (max_attempts == 2)
            assert sum(len(stack.workers[name].decode.requests) for name in ("d0", "d1")) == max_attempts
            await stack.quiet()


async def test_what_another_worker_would_say_too_is_not_tried_again(stack: Stack) -> None:
    stack.prefill.script = failing(BatonError(ErrorCode.INVALID_ARGUMENT, "bad"), 9, hang)
    assert (await stack.error()).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert stack.workers["p1"].prefill.requests == []


def poisoned(worker: FakeWorker, dying: list[asyncio.Task[None]]) -> Any:
    async def script(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        if request.prompt_token_ids[0] == 13:
            dying.append(asyncio.create_task(worker.die()))
            await asyncio.Event().wait()
        async for event in prefill_of(ANSWER)(request):
            yield event

    return script


async def test_a_poison_request_stops_after_two_deaths(model: Path) -> None:
    roles = [*((f"p{index}", Role.PREFILL) for index in range(4)), ("d0", Role.DECODE)]
    async with running_stack(model, roles, max_attempts=9) as stack:
        dying: list[asyncio.Task[None]] = []
        for name, worker in stack.workers.items():
            if name != "d0":
                worker.prefill.script = poisoned(worker, dying)
        await asyncio.gather(*(stack.generate() for _ in range(8)))  # all are connected
        error = await stack.error(tokens={"token_ids": [13, 14, 15]})
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "died while they computed this request" in error.details()
        assert len(dying) == 2
        answers = await asyncio.gather(*(stack.generate() for _ in range(4)))
        assert [ids_of(answer) for answer in answers] == [ANSWER] * 4
        assert len(dying) == 2


async def test_workers_that_were_dead_before_are_nobodys_fault(model: Path) -> None:
    roles = [*((f"p{index}", Role.PREFILL) for index in range(3)), ("d0", Role.DECODE)]
    async with running_stack(model, roles) as stack:
        for name in ("p0", "p1"):
            await stack.workers[name].die()
        assert ids_of(await stack.generate()) == ANSWER


async def test_a_draining_worker_costs_no_attempt(model: Path) -> None:
    async with running_stack(model, TWO_OF_EACH, max_attempts=1) as stack:
        draining = BatonError(ErrorCode.UNAVAILABLE, "is draining", reason=Reason.DRAINING)
        stack.decode.refusals = [draining] * 9
        stack.prefill.script = failing(draining, 9, hang)
        responses = await stack.generate()
        assert ids_of(responses) == ANSWER
        assert (responses[-1].hand_over.prefill_worker, responses[-1].hand_over.decode_worker) == ("p1", "d1")
        await stack.quiet()


async def test_draining_alone_ends_in_bounded_time(model: Path) -> None:
    async with running_stack(model) as stack:
        stack.decode.refusals = [BatonError(ErrorCode.UNAVAILABLE, "is draining", reason=Reason.DRAINING)] * 99
        error = await stack.error()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert len(stack.decode.reserves) <= 4


async def test_attempts_are_spans(model: Path) -> None:
    collector = FakeCollector()
    endpoint = await collector.start()
    try:
        async with running_stack(model, TWO_OF_EACH, otlp_endpoint=endpoint) as stack:
            stack.decode.script = failing(BatonError(ErrorCode.UNAVAILABLE, "KV digest mismatch"), 1, hang)
            await stack.generate()
        (span,) = collector.named("gateway.attempt")
        (root,) = collector.named("gateway.request")
        assert span.parent_span_id == root.span_id
        assert attributes(span)["baton.attempt.epoch"] == 2
        assert attributes(span)["baton.attempt.after"] == "decode worker d0: KV digest mismatch"
        first, second = sorted(collector.named("decode.reserve"), key=lambda one: one.start_time_unix_nano)
        assert (first.parent_span_id, second.parent_span_id) == (root.span_id, span.span_id)
        traceparent = stack.workers["p1"].prefill.metadata[0]["traceparent"]
        assert traceparent.split("-")[2] == span.span_id.hex()
    finally:
        await collector.close()


async def test_an_aggregated_worker_takes_over(model: Path) -> None:
    async with running_stack(model, [("a0", Role.AGGREGATED), ("a1", Role.AGGREGATED)]) as stack:

        async def some(request: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
            yield tokens(0, *ANSWER[:2])
            await asyncio.Event().wait()

        stack.workers["a0"].decode.script = some
        stream = stack.stream()
        responses = await read_tokens(stream, 2)
        await stack.workers["a0"].die()
        responses += await stack.read_all(stream)
        assert ids_of(responses) == ANSWER
        assert list(stack.workers["a1"].decode.requests[0].local.output_token_ids) == ANSWER[:2]


async def test_the_first_token_of_a_replay_may_end_the_request(stack: Stack) -> None:
    async def last(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield first_token(ANSWER[2], FinishReason.STOP, position=2)
        yield prefill_done(worker_pb2.TransferStats())

    stack.decode.script, stack.workers["d1"].decode.script = some_then_hang(ANSWER, 2), hang
    stream = stack.stream()
    responses = await read_tokens(stream, 2)
    for name in ("p0", "p1"):
        stack.workers[name].prefill.script = last
    await stack.workers["d0"].die()
    responses += await stack.read_all(stream)
    assert (ids_of(responses), responses[-1].finish_reason) == (ANSWER[:3], STOP)
    await stack.quiet()


async def test_a_lease_is_renewed_while_prefill_has_not_written_all(stack: Stack) -> None:
    """Decode first, then prefill with decode's answer; no more of it once the KV has come."""
    for name in ("d0", "d1"):
        stack.workers[name].decode.renew_after_ms, stack.workers[name].decode.script = 20, hang
    stack.prefill.script = stack.workers["p1"].prefill.script = hang
    stream = stack.stream()
    await eventually(lambda: len(stack.prefill.extensions) >= 3)
    assert [request.lease_deadline_unix_ns for request in stack.prefill.extensions[:3]] == [1001, 1002, 1003]
    assert {(request.grant_id, request.epoch) for request in stack.decode.renewals} == {("grant-1", 1)}
    assert {(one.request_id, one.epoch) for one in stack.prefill.extensions} == {
        (stack.prefill.requests[0].request_id, 1)
    }
    stream.cancel()
    await stack.quiet()
    count = len(stack.decode.renewals)
    await asyncio.sleep(0.1)
    assert len(stack.decode.renewals) == count


async def test_a_prefill_core_that_gives_no_answer_gets_no_more_time(stack: Stack) -> None:
    stack.decode.renew_after_ms, stack.decode.script = 20, hang
    stack.prefill.script, stack.prefill.extension_gate = hang, asyncio.Event()
    stream = stack.stream()
    await eventually(lambda: stack.prefill.extensions)
    await asyncio.sleep(0.2)
    assert len(stack.decode.renewals) == 1
    stream.cancel()
    await stack.quiet()
