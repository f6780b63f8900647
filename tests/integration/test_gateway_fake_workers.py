"""A gateway in front of scripted workers: what a client gets, and in which order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.types import FinishReason, Role, WorkerRef
from gateway.config import Limits
from gateway.text import TextCodec
from tests.fakes.gateway_stack import ANSWER, PROMPT, Stack, eventually, ids_of, running_stack
from tests.fakes.text_model import CONTEXT, write_text_model
from tests.fakes.workers import (
    admitted,
    decode_of,
    finished,
    first_token,
    hang,
    prefill_done,
    prefill_of,
    tokens,
)

LENGTH, STOP = sampling_pb2.FINISH_REASON_LENGTH, sampling_pb2.FINISH_REASON_STOP
Sampling = sampling_pb2.SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model) as running:
        yield running


async def test_normal_flow(stack: Stack) -> None:
    stack.prefill.script = prefill_of(ANSWER, cached=32)
    sampling = Sampling(temperature=0, seed=7, max_tokens=5)
    responses = await stack.generate(request_id="mine", sampling=sampling, priority=-3)
    assert ids_of(responses) == ANSWER
    assert len(responses[0].trace_id) == 32
    assert {response.request_id for response in responses} == {"mine"}
    last = responses[-1]
    assert last.finish_reason == LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_prompt_tokens) == (40, 5, 32)
    assert last.hand_over == inference_pb2.HandOver(
        prefill_worker="p0",
        decode_worker="d0",
        blocks=3,
        bytes=4096,
        transfer_us=70,
        exposed_us=11,
        verify_us=13,
        control_us=17,
    )
    assert all(response.finish_reason == 0 for response in responses[:-1])
    assert [request.priority for request in (*stack.decode.reserves, *stack.prefill.requests)] == [-3, -3]
    await stack.quiet()
    assert stack.decode.releases == []  # decode took the grant over
    assert stack.prefill.cancels == []


async def test_workers_get_the_same_request(stack: Stack) -> None:
    await stack.generate(request_id="mine", sampling=Sampling(temperature=0.5, seed=7, max_tokens=5, stop=["zzz"]))
    reserve, prefill, decode = stack.decode.reserves[0], stack.prefill.requests[0], stack.decode.requests[0]
    assert list(reserve.prompt_token_ids) == list(prefill.prompt_token_ids) == PROMPT
    assert reserve.sampling == prefill.sampling
    assert (prefill.sampling.seed, prefill.sampling.max_tokens, list(prefill.sampling.stop)) == (7, 5, [])
    assert reserve.request_id == prefill.request_id == decode.request_id
    assert reserve.request_id.startswith("mine-")
    assert (reserve.epoch, prefill.epoch, decode.epoch) == (1, 1, 1)
    assert prefill.grant.grant_id == decode.grant_id == "grant-1"


async def test_first_token_comes_before_decode_starts(stack: Stack) -> None:
    stack.decode.script = hang
    stream = stack.stream()
    first = await stream.read()
    assert list(first.token_ids) == ANSWER[:1]
    assert first.trace_id
    stream.cancel()


async def test_order_is_by_output_position(stack: Stack) -> None:
    decode_done = asyncio.Event()

    async def late_prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        await decode_done.wait()
        await asyncio.sleep(0.05)
        yield first_token(ANSWER[0])
        yield prefill_done()

    async def shuffled_decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(3, *ANSWER[3:])
        yield tokens(1, *ANSWER[1:3])
        yield tokens(2, *ANSWER[2:4])  # twice
        yield finished()
        decode_done.set()

    stack.prefill.script, stack.decode.script = late_prefill, shuffled_decode
    responses = await stack.generate()
    assert ids_of(responses) == ANSWER
    assert responses[-1].hand_over.blocks == 3


async def test_statistics_may_come_after_the_last_token(stack: Stack) -> None:
    async def slow_end(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield first_token(ANSWER[0])
        await asyncio.sleep(0.2)
        yield prefill_done()

    stack.prefill.script = slow_end
    assert (await stack.generate())[-1].hand_over.bytes == 4096


async def test_missing_statistics_do_not_hold_up_the_answer(model: Path) -> None:
    async def no_end(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield first_token(ANSWER[0])
        await asyncio.Event().wait()

    async with running_stack(model, limits=Limits(transfer_wait_s=0.1)) as stack:
        stack.prefill.script = no_end
        responses = await stack.generate()
        assert (responses[-1].finish_reason, responses[-1].hand_over.bytes) == (LENGTH, 0)
        await stack.quiet()


@pytest.mark.parametrize("fenced", [True, False])
async def test_one_token_needs_no_hand_over(stack: Stack, fenced: bool) -> None:
    stack.decode.script, stack.prefill.fenced = hang, fenced
    responses = await stack.generate(sampling=Sampling(max_tokens=1))
    assert ids_of(responses) == ANSWER[:1]
    assert (responses[-1].finish_reason, responses[-1].usage.completion_tokens) == (LENGTH, 1)
    assert responses[-1].hand_over == inference_pb2.HandOver(prefill_worker="p0")
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases == [worker_pb2.ReleaseRequest(grant_id="grant-1", epoch=1, fenced=fenced)]
    assert len(stack.prefill.cancels) == 1  # an early chunk's write may have failed
    await stack.quiet()


async def test_one_token_without_prefills_last_word(model: Path) -> None:
    async def no_end(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield first_token(ANSWER[0], FinishReason.STOP)
        await asyncio.Event().wait()

    async with running_stack(model, limits=Limits(transfer_wait_s=0.1)) as stack:
        stack.prefill.script, stack.prefill.fenced, stack.decode.script = no_end, False, hang
        assert (await stack.generate())[-1].finish_reason == STOP
        await eventually(lambda: stack.decode.releases)
        assert len(stack.prefill.cancels) == 1
        assert stack.decode.releases[0].fenced is False


async def test_text_of_a_chat(stack: Stack, model: Path) -> None:
    codec = TextCodec(model)
    answer = [*codec.encode("naïve 🎉 dog"), codec.encode("<|im_end|>")[0]]
    stack.prefill.script, stack.decode.script = prefill_of(answer), decode_of(answer, reason=FinishReason.STOP)
    messages = [inference_pb2.ChatMessage(role="user", content="Hi")]
    responses = await stack.generate(chat=inference_pb2.ChatPrompt(messages=messages))
    assert "".join(response.text for response in responses) == "naïve 🎉 dog"
    assert not any("\ufffd" in response.text for response in responses)
    assert responses[-1].finish_reason == STOP
    assert list(stack.prefill.requests[0].prompt_token_ids) == codec.encode_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(("include", "text"), [(False, "the quick "), (True, "the quick brown")])
async def test_stop_string_ends_decoding(stack: Stack, model: Path, include: bool, text: str) -> None:
    answer = TextCodec(model).encode("the quick brown fox jumps over the lazy dog. " * 3)
    stack.prefill.script, stack.decode.script = prefill_of(answer), decode_of(answer, delay_s=0.01)
    sampling = Sampling(stop=["brown"], include_stop_str_in_output=include)
    responses = await stack.generate(sampling=sampling)
    assert "".join(response.text for response in responses) == text
    last = responses[-1]
    assert (last.finish_reason, last.usage.completion_tokens) == (STOP, len(ids_of(responses)))
    assert last.usage.completion_tokens < len(answer)
    assert last.hand_over.blocks == 3
    await eventually(lambda: stack.decode.releases)
    assert stack.decode.releases[0].fenced  # PrefillDone was there
    await stack.quiet()


async def test_logprobs_come_with_their_tokens(stack: Stack) -> None:
    def logprob(token_id: int) -> sampling_pb2.TokenLogprobs:
        return sampling_pb2.TokenLogprobs(sampled=sampling_pb2.Logprob(token_id=token_id, logprob=-0.5))

    async def prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield worker_pb2.PrefillEvent(first_token=worker_pb2.FirstToken(token_id=100, logprobs=logprob(100)))
        yield prefill_done()

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        event = tokens(1, 101, 102)
        event.tokens.logprobs.extend([logprob(101), logprob(102)])
        yield event
        yield finished()

    stack.prefill.script, stack.decode.script = prefill, decode
    responses = await stack.generate(sampling=Sampling(logprobs=0))
    assert [entry.sampled.token_id for response in responses for entry in response.logprobs] == [100, 101, 102]
    assert stack.prefill.requests[0].sampling.HasField("logprobs")


async def test_aggregated_worker_serves_alone(model: Path) -> None:
    async with running_stack(model, roles=[("a0", Role.AGGREGATED)]) as stack:
        responses = await stack.generate(sampling=Sampling(max_tokens=5))
        assert ids_of(responses) == ANSWER
        assert responses[-1].usage.cached_prompt_tokens == 8
        assert responses[-1].hand_over == inference_pb2.HandOver(prefill_worker="a0", decode_worker="a0")
        request = stack.workers["a0"].decode.requests[0]
        assert list(request.local.prompt_token_ids) == PROMPT
        assert request.local.sampling.max_tokens == 5
        await stack.quiet()
        assert stack.workers["a0"].decode.reserves == []


async def test_cached_tokens_are_known_when_a_stop_string_ends_it(model: Path) -> None:
    answer = TextCodec(model).encode("the quick brown fox jumps over the lazy dog. " * 3)
    async with running_stack(model, roles=[("a0", Role.AGGREGATED)]) as stack:
        stack.workers["a0"].decode.script = decode_of(answer, delay_s=0.01)
        last = (await stack.generate(sampling=Sampling(stop=["brown"])))[-1]
        assert (last.finish_reason, last.usage.cached_prompt_tokens) == (STOP, 8)


async def test_many_at_once(stack: Stack) -> None:
    stack.decode.script = decode_of(ANSWER, delay_s=0.002)
    answers = await asyncio.gather(*(stack.generate() for _ in range(50)))
    assert [ids_of(answer) for answer in answers] == [ANSWER] * 50
    await stack.quiet()


async def test_refused_reservation_is_tried_again(stack: Stack) -> None:
    full = BatonError(ErrorCode.RESOURCE_EXHAUSTED, "no blocks", retry_after_s=0.1)
    stack.decode.refusals = [full, full]
    started = asyncio.get_running_loop().time()
    assert ids_of(await stack.generate()) == ANSWER
    assert asyncio.get_running_loop().time() - started >= 0.2
    assert len(stack.decode.reserves) == 3


async def test_another_decode_worker_has_room(model: Path) -> None:
    roles = [("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]
    async with running_stack(model, roles) as stack:
        stack.directory.owned = {WorkerRef("d0", "1"): 2}
        stack.decode.refusals = [BatonError(ErrorCode.RESOURCE_EXHAUSTED, "no blocks", retry_after_s=60.0)]
        responses = await stack.generate()
        assert responses[-1].hand_over.decode_worker == "d1"


async def test_reservation_is_given_up(model: Path) -> None:
    async with running_stack(model, limits=Limits(max_reserve_wait_s=0.3)) as stack:
        stack.decode.refusals = [BatonError(ErrorCode.RESOURCE_EXHAUSTED, "no blocks", retry_after_s=0.1)] * 9
        error = await stack.error()
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "no decode worker has room for this request after" in error.details()
        assert 2 <= len(stack.decode.reserves) <= 4
        assert stack.prefill.requests == []
        await stack.quiet()


async def test_health_reflection_and_models(stack: Stack) -> None:
    health = health_pb2_grpc.HealthStub(stack.channel)
    for name in ("", "baton.v1.Inference"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(stack.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="baton.v1.Inference"),
    ]
    listed, described = [answer async for answer in reflection.ServerReflectionInfo(iter(asked))]
    assert "baton.v1.Inference" in [service.name for service in listed.list_services_response.service]
    files = [FileDescriptorProto.FromString(f) for f in described.file_descriptor_response.file_descriptor_proto]
    assert any(service.name == "Inference" for file in files for service in file.service)
    models = await stack.stub.ListModels(inference_pb2.ListModelsRequest())
    assert [(entry.name, entry.max_model_len) for entry in models.models] == [("tiny", CONTEXT)]


async def test_no_method_takes_more_than_the_largest_message(model: Path) -> None:
    async with running_stack(model, max_message_mib=1) as stack:
        big = "a" * (1 << 20)
        for call in (
            stack.stub.Tokenize(inference_pb2.TokenizeRequest(text=big)),
            stack.stub.Detokenize(inference_pb2.DetokenizeRequest(model=big)),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="--max-message-mib"):
                await call
