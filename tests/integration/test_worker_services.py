"""The calls of the worker services, over real gRPC, with real service processes and a fake engine core in each."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest

from baton.block_hash import block_hashes
from baton.convert import sampling_to_pb
from baton.directory.reader import DirectoryReader
from baton.errors import ErrorCode
from baton.grpc_util.status import from_rpc_error
from baton.rpc import kv_pb2, sampling_pb2, worker_pb2
from baton.telemetry.tracing import Tracing, outgoing_metadata
from baton.types import Role, SamplingParams
from tests.fakes.redis_server import RedisServer
from tests.fakes.trace_receiver import TraceReceiver
from tests.fakes.worker_process import WorkerProcess
from tests.fakes.worker_stack import (
    EPOCH,
    LONG,
    PROMPT,
    Stack,
    collect,
    decode,
    decode_local,
    prefill,
    release,
    reserve,
    settled,
)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("workers")
    redis, traces = RedisServer(folder), TraceReceiver()

    def worker(module: str, name: str, *flags: str) -> WorkerProcess:
        return WorkerProcess(module, folder, redis.url, "--otlp-endpoint", traces.address, *flags, name=name)

    aggregated = worker("decode_service", "a0", "--aggregated")
    stack = Stack(redis, traces, worker("prefill_service", "p0"), worker("decode_service", "d0"), aggregated)
    try:
        yield stack
    finally:
        for process in stack.workers:
            process.channel = None  # of a loop that is closed by now
        asyncio.run(_close_all(stack))


async def _close_all(stack: Stack) -> None:
    await asyncio.gather(*(worker.close() for worker in stack.workers))
    stack.traces.close()
    stack.redis.close()


@pytest.fixture
async def stack(processes: Stack) -> AsyncIterator[Stack]:
    """With channels of this test's event loop; leaves no request behind."""
    for worker in processes.workers:
        await worker.wait_serving()
    yield processes
    for worker in processes.workers:
        await settled(worker)
        assert worker.channel
        await worker.channel.close()


async def error_of(work: Awaitable[Any]) -> tuple[ErrorCode, str, float | None]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await work
    error = from_rpc_error(raised.value, "worker")
    return error.code, error.message, error.retry_after_s


def tokens_of(events: list[worker_pb2.DecodeEvent]) -> list[int]:
    return [token for event in events if event.HasField("tokens") for token in event.tokens.token_ids]


async def test_a_prompt_is_handed_over(stack: Stack) -> None:
    sampling = SamplingParams(max_tokens=4, num_logprobs=1)
    grant = await reserve(stack, "r", sampling)
    (first, done), (admitted, *rest) = await asyncio.gather(
        collect(prefill(stack, grant, sampling)), collect(decode(stack, grant))
    )
    assert first.first_token.token_id == 140
    assert first.first_token.logprobs.sampled == sampling_pb2.Logprob(token_id=140, logprob=-0.5)
    assert first.first_token.finish_reason == sampling_pb2.FINISH_REASON_UNSPECIFIED
    assert first.first_token.cached_prompt_tokens == 16
    assert (done.done.transfer.blocks, done.done.transfer.bytes) == (2, 4096)
    assert admitted.admitted.verify_us == 11
    assert [event.tokens.output_position for event in rest[:-1]] == [1, 2, 3]
    assert tokens_of(rest) == [141, 142, 143]
    assert rest[0].tokens.logprobs[0].top[0].token_id == 1
    assert rest[-1].finished.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    assert rest[-1].finished.cached_prompt_tokens == 16


@pytest.mark.parametrize("stop", [False, True])
async def test_a_first_token_that_ends_the_request_says_so(stack: Stack, stop: bool) -> None:
    sampling = SamplingParams(max_tokens=9, stop_token_ids=(140,)) if stop else SamplingParams(max_tokens=1)
    grant = await reserve(stack, "r", sampling)
    first, done = await collect(prefill(stack, grant, sampling))
    expected = sampling_pb2.FINISH_REASON_STOP if stop else sampling_pb2.FINISH_REASON_LENGTH
    assert first.first_token.finish_reason == expected
    assert done.done.transfer.blocks == 0
    await release(stack, grant)


async def test_prefill_refuses_what_does_not_fit_its_grant(stack: Stack) -> None:
    grant = await reserve(stack, "r")
    for changes in ({"request_id": "other"}, {"epoch": EPOCH + 1}):
        code, message, _ = await error_of(collect(prefill(stack, grant, **changes)))
        assert code is ErrorCode.INVALID_ARGUMENT
        assert "expected one of the same request and epoch" in message
    bare = worker_pb2.PrefillRequest(request_id="r", epoch=EPOCH, prompt_token_ids=PROMPT)
    assert "reserve room on a decode worker first" in (await error_of(collect(stack.p.prefill.Prefill(bare))))[1]
    empty = worker_pb2.PrefillRequest(request_id="r", epoch=EPOCH, grant=grant)
    assert "got no prompt_token_ids" in (await error_of(collect(stack.p.prefill.Prefill(empty))))[1]
    await release(stack, grant)


async def test_a_failure_in_the_core_keeps_its_code_and_words(stack: Stack) -> None:
    grant = await reserve(stack, "fail")
    failed = await error_of(collect(prefill(stack, grant)))
    assert failed == (ErrorCode.INVALID_ARGUMENT, "worker: got a prompt to fail on", None)
    assert await error_of(collect(decode_local(stack.a, "fail", LONG))) == failed
    await release(stack, grant)


async def test_a_cancelled_prefill_call_aborts_the_request(stack: Stack) -> None:
    grant = await reserve(stack, "hang")
    call = prefill(stack, grant)
    reading = asyncio.create_task(collect(call))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await settled(stack.p)
    await release(stack, grant)


async def test_cancel_prefill_fences_and_later_calls_are_refused(stack: Stack) -> None:
    request_id = f"hang-{uuid.uuid4().hex}"
    grant = await reserve(stack, request_id)
    running = asyncio.create_task(collect(prefill(stack, grant)))
    await asyncio.sleep(0.1)
    cancel = worker_pb2.CancelPrefillRequest(request_id=request_id, epoch=EPOCH)
    assert (await stack.p.prefill.CancelPrefill(cancel)).fenced
    assert (await error_of(running))[0] is ErrorCode.CANCELLED
    assert (await stack.p.prefill.CancelPrefill(cancel)).fenced  # over already
    assert (await error_of(collect(prefill(stack, grant))))[0] is ErrorCode.CANCELLED
    await release(stack, grant)


async def test_a_full_decode_worker_says_when_to_try_again(stack: Stack) -> None:
    grants = [await reserve(stack, f"r{i}") for i in range(8)]
    assert await error_of(reserve(stack, "one more")) == (
        ErrorCode.RESOURCE_EXHAUSTED,
        "worker: got no free block",
        0.25,
    )
    for grant in grants:
        await release(stack, grant)
        await release(stack, grant)  # idempotent
    await release(stack, await reserve(stack, "one more"))


async def test_a_grant_is_claimed_by_its_own_attempt_and_once(stack: Stack) -> None:
    grant = await reserve(stack, "r")
    unknown = kv_pb2.Grant(grant_id="no such", request_id="r")
    assert (await error_of(collect(decode(stack, unknown))))[0] is ErrorCode.NOT_FOUND
    assert (await error_of(collect(decode(stack, grant, EPOCH + 1))))[0] is ErrorCode.NOT_FOUND
    first = asyncio.create_task(collect(decode(stack, grant)))
    await asyncio.sleep(0.1)
    assert (await error_of(collect(decode(stack, grant))))[0] is ErrorCode.FAILED_PRECONDITION
    await release(stack, grant)
    assert (await error_of(first))[0] is ErrorCode.CANCELLED


@pytest.mark.parametrize("release_first", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
async def test_cancel_and_release_work_in_both_orders(stack: Stack, release_first: bool, is_running: bool) -> None:
    grant = await reserve(stack, "r")
    call = decode(stack, grant)
    reading = asyncio.create_task(collect(call))
    if is_running:
        await collect(prefill(stack, grant))
    await asyncio.sleep(0.1)
    if release_first:
        await release(stack, grant)
        assert (await error_of(reading))[0] is ErrorCode.CANCELLED
        call.cancel()
    else:
        call.cancel()
        await settled(stack.d)
        await release(stack, grant)
        await asyncio.wait([reading])
    await settled(stack.d)


async def test_a_release_of_another_epoch_is_dropped(stack: Stack) -> None:
    grant = await reserve(stack, "r")
    await release(stack, grant, EPOCH - 1)
    await asyncio.sleep(0.05)
    assert (await stack.d.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest())).grants_open == 1
    await release(stack, grant)


async def test_a_reservation_cancelled_before_its_answer_is_given_back(stack: Stack) -> None:
    call = asyncio.create_task(reserve(stack, "slow"))
    await asyncio.sleep(0.1)
    call.cancel()
    async with asyncio.timeout(5):  # the grant is made late, and given back some time after that
        while (grant := await _reserve_unless_open(stack, "slow")) is None:
            pass
    await release(stack, grant)
    await settled(stack.d)


async def _reserve_unless_open(stack: Stack, request_id: str) -> kv_pb2.Grant | None:
    """None while an earlier attempt of the same name is not over."""
    try:
        return await reserve(stack, request_id)
    except grpc.aio.AioRpcError as error:
        if "is running already" not in str(error.details()):
            raise
        return None


async def test_a_late_decode_call_still_gets_everything(stack: Stack) -> None:
    sampling = SamplingParams(max_tokens=3)
    grant = await reserve(stack, "r", sampling)
    await collect(prefill(stack, grant, sampling))
    await settled(stack.d)
    assert tokens_of(await collect(decode(stack, grant))) == [141, 142]
    assert (await error_of(collect(decode(stack, grant))))[0] is ErrorCode.FAILED_PRECONDITION


async def test_local_prompts_work_on_both_kinds_of_decode_worker(stack: Stack) -> None:
    for worker in (stack.d, stack.a):
        events = await collect(decode_local(worker, "r", SamplingParams(max_tokens=3)))
        assert tokens_of(events) == [140, 141, 142]
        assert events[0].tokens.output_position == 0
        assert [event.tokens.cached_prompt_tokens for event in events[:3]] == [16, 0, 0]
        assert events[-1].finished.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
        call = decode_local(worker, "r", LONG)
        assert tokens_of([await call.read()]) == [140]
        call.cancel()
        await settled(worker)


async def test_an_aggregated_worker_takes_no_hand_over(stack: Stack) -> None:
    request = worker_pb2.ReserveRequest(request_id="r", epoch=EPOCH, prompt_token_ids=PROMPT)
    assert (await error_of(stack.a.decode.Reserve(request)))[0] is ErrorCode.UNIMPLEMENTED
    wrong = worker_pb2.DecodeRequest(request_id="r", epoch=EPOCH, grant_id="g")
    assert (await error_of(collect(stack.a.decode.Decode(wrong))))[0] is ErrorCode.INVALID_ARGUMENT
    await stack.a.decode.Release(worker_pb2.ReleaseRequest(grant_id="g", epoch=EPOCH))


async def test_control_tells_what_a_worker_is(stack: Stack) -> None:
    expected = {"p0": worker_pb2.WORKER_ROLE_PREFILL, "d0": worker_pb2.WORKER_ROLE_DECODE}
    expected["a0"] = worker_pb2.WORKER_ROLE_AGGREGATED
    for worker in stack.workers:
        info = await worker.control.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest())
        assert (info.worker.name, info.role) == (worker.name, expected[worker.name])
        assert (info.model, info.model_fingerprint, info.max_model_len) == ("fake-model", "feedc0de", 512)
        assert (info.layout.block_size, info.layout.num_layers) == (16, 2)
        stats = await worker.control.CheckIntegrity(worker_pb2.CheckIntegrityRequest())
        assert (stats.blocks_total, stats.blocks_free, stats.steps) == (100, 100, 7)
        reset = await worker.control.ResetPrefixCache(worker_pb2.ResetPrefixCacheRequest())
        assert reset.blocks == 11


async def test_workers_and_blocks_are_in_the_directory(stack: Stack) -> None:
    reader = DirectoryReader(stack.redis.url, "feedc0de")
    records = {record.worker.name: record for record in await reader.workers()}
    assert {name: record.role for name, record in records.items()} == {
        "a0": Role.AGGREGATED,
        "d0": Role.DECODE,
        "p0": Role.PREFILL,
    }
    for worker in stack.workers:
        record = records[worker.name]
        assert (record.address, record.model, record.num_blocks) == (worker.address, "fake-model", 100)
        assert record.kv_format == (16, "float32")
    await collect(decode_local(stack.a, "r", SamplingParams(max_tokens=2)))
    owner = records["a0"].worker
    await eventually_owned(reader, owner, block_hashes("feedc0de", PROMPT, 16))
    await reader.close()


async def eventually_owned(reader: DirectoryReader, owner: Any, hashes: list[bytes]) -> None:
    deadline_s = time.monotonic() + 5
    while (await reader.longest_prefixes(hashes, [owner]))[owner] < len(hashes):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


Traced = Callable[[Stack, tuple[tuple[str, str], ...]], Awaitable[None]]


async def _traced_hand_over(stack: Stack, metadata: tuple[tuple[str, str], ...]) -> None:
    sampling = SamplingParams(max_tokens=3)
    grant = await reserve(stack, "r", sampling)
    prefill_request = worker_pb2.PrefillRequest(
        request_id="r", epoch=EPOCH, prompt_token_ids=PROMPT, sampling=sampling_to_pb(sampling), grant=grant
    )
    decode_request = worker_pb2.DecodeRequest(request_id="r", epoch=EPOCH, grant_id=grant.grant_id)
    await asyncio.gather(
        collect(stack.p.prefill.Prefill(prefill_request, metadata=metadata)),
        collect(stack.d.decode.Decode(decode_request, metadata=metadata)),
    )


async def _traced_local(stack: Stack, metadata: tuple[tuple[str, str], ...]) -> None:
    await collect(decode_local(stack.a, "r", SamplingParams(max_tokens=3), metadata=metadata))


async def _traced_stop(stack: Stack, metadata: tuple[tuple[str, str], ...]) -> None:
    """The caller has seen enough, as with a stop string."""
    call = decode_local(stack.a, "r", LONG, metadata=metadata)
    await call.read()
    await call.read()
    call.cancel()


LOCAL = {"decode.queue", "prefill.compute", "decode.run"}


@pytest.mark.parametrize(
    ("serve", "names"),
    [
        (_traced_hand_over, {"prefill.queue", "prefill.compute", "kv.transfer", "decode.queue", "decode.run"}),
        (_traced_local, LOCAL),
        (_traced_stop, LOCAL),
    ],
)
async def test_spans_are_children_of_the_callers(stack: Stack, serve: Traced, names: set[str]) -> None:
    tracing = Tracing("test", None)
    with tracing.tracer.start_as_current_span("gateway.request") as span:
        await serve(stack, outgoing_metadata())
    context = span.get_span_context()
    spans = await asyncio.to_thread(stack.traces.wait_for, format(context.trace_id, "032x"), names)
    assert set(spans) == names
    assert {found.parent_span_id.hex() for found in spans.values()} == {format(context.span_id, "016x")}
    run = {attribute.key: attribute.value for attribute in spans["decode.run"].attributes}
    assert run["baton.worker"].string_value in ("d0", "a0")
    assert run["gen_ai.usage.output_tokens"].int_value >= 2
    assert spans["decode.run"].events[0].name == "first token"
    for before, after in (("decode.queue", "decode.run"), ("prefill.compute", "decode.run")):
        assert spans[before].end_time_unix_nano <= spans[after].end_time_unix_nano
    if "kv.transfer" in names:
        transfer = {
            attribute.key.removeprefix("baton.kv."): attribute.value for attribute in spans["kv.transfer"].attributes
        }
        assert (transfer["blocks"].int_value, transfer["bytes"].int_value, transfer["writes"].int_value) == (2, 4096, 1)
        assert transfer["gb_s"].double_value == pytest.approx(4096 / 2000)
        assert (transfer["post_us"].int_value, transfer["exposed_us"].int_value) == (3, 1)
        chunk = spans["prefill.compute"].events[0]
        assert (chunk.name, chunk.attributes[0].value.int_value) == ("chunk", len(PROMPT))
