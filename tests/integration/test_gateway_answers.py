"""Several answers to one request, as the gateway makes them of scripted workers' streams."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from baton.rpc import inference_pb2, sampling_pb2, worker_pb2
from baton.types import FinishReason, Role
from gateway.num_answers import answer_seed
from tests.fakes.gateway_stack import ANSWER, PROMPT, FakeCollector, Stack, attributes, eventually, running_stack
from tests.fakes.text_model import byte_level_tokenizer, write_text_model
from tests.fakes.workers import admitted, decode_of, finished, prefill_of, tokens

Sampling = sampling_pb2.SamplingParams
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(model: Path) -> AsyncIterator[Stack]:
    async with running_stack(model) as running:
        yield running


def answers(responses: Sequence[inference_pb2.GenerateResponse]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for response in responses:
        found.setdefault(response.index, []).extend(response.token_ids)
    return found


def answer_of(request: worker_pb2.DecodeRequest) -> list[int]:
    """Other tokens for each answer, as long as the leader's."""
    return [token + 10 * request.answer_index for token in ANSWER]


async def scripted(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
    async for event in decode_of(answer_of(request))(request):
        yield event


EXPECTED = {index: [token + 10 * index for token in ANSWER] for index in range(3)}


async def test_one_hand_over_and_forks_of_it(stack: Stack) -> None:
    stack.decode.script = scripted
    responses = await stack.generate(sampling=Sampling(n=3, seed=9))
    assert answers(responses) == EXPECTED
    ends = {response.index: response for response in responses if response.finish_reason}
    assert len(ends) == 3
    assert [end.usage.completion_tokens for end in ends.values()] == [len(ANSWER)] * 3
    assert [ends[index].hand_over.prefill_worker for index in range(3)] == ["p0", "", ""]
    assert {end.hand_over.decode_worker for end in ends.values()} == {"d0"}
    assert [response.trace_id != "" for response in responses] == [True] + [False] * (len(responses) - 1)
    (prefill,), (reserve,) = stack.prefill.requests, stack.decode.reserves
    leader, *forks = sorted(stack.decode.requests, key=lambda request: request.answer_index)
    assert leader.WhichOneof("source") == "grant_id"
    for index, fork in enumerate(forks, 1):
        assert (fork.local.fork_of.request_id, fork.local.fork_of.epoch) == (reserve.request_id, 1)
        assert list(fork.local.prompt_token_ids) == PROMPT
        assert fork.local.sampling.seed == answer_seed(9, index)
    assert prefill.sampling.seed == 9
    await stack.quiet()


async def test_an_aggregated_worker_gets_forks_once_it_knows_their_leader(model: Path) -> None:
    async with running_stack(model, roles=[("a0", Role.AGGREGATED)]) as stack:
        worker = stack.workers["a0"].decode
        worker.script = scripted
        assert answers(await stack.generate(sampling=Sampling(n=3))) == EXPECTED
        assert [request.local.HasField("fork_of") for request in worker.requests] == [False, True, True]
        await stack.quiet()


async def test_a_stop_string_ends_one_answer_alone(stack: Stack) -> None:
    ids = byte_level_tokenizer().encode("abcd").ids

    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        if request.answer_index != 1:
            async for event in scripted(request):
                yield event
            return
        yield tokens(0, *ids)
        await asyncio.Event().wait()

    stack.decode.script = script
    responses = await stack.generate(sampling=Sampling(n=3, stop=["bc"]))
    reasons = {response.index: response.finish_reason for response in responses if response.finish_reason}
    assert reasons == {0: LENGTH, 1: sampling_pb2.FINISH_REASON_STOP, 2: LENGTH}
    assert "".join(response.text for response in responses if response.index == 1) == "a"
    await stack.quiet()


async def test_echo_comes_once(stack: Stack) -> None:
    stack.decode.script = scripted
    responses = await stack.generate(text="the fox", sampling=Sampling(n=3), echo=True)
    assert [response.index for response in responses if response.prompt_token_ids] == [0]


async def test_the_best_ones_are_told_when_all_have_ended(stack: Stack) -> None:
    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        index, first = request.answer_index, 0 if request.answer_index else 1
        if not first:
            assert request.local.sampling.logprobs == 0
        else:
            yield admitted()
        for position in range(first, len(ANSWER)):
            event = tokens(position, ANSWER[position] + 10 * index)
            event.tokens.logprobs.add().sampled.logprob = [-1.0, -9.0, -0.5][index]
            yield event
        yield finished(FinishReason.LENGTH)

    stack.decode.script = script
    responses = await stack.generate(sampling=Sampling(n=2, best_of=3))
    assert answers(responses) == {0: EXPECTED[2], 1: EXPECTED[0]}
    assert not any(response.logprobs for response in responses)
    await stack.quiet()


async def test_a_client_that_leaves_leaves_nothing_behind(stack: Stack) -> None:
    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        if request.answer_index == 0:
            yield admitted()
        else:
            yield tokens(0, 7)
        await asyncio.Event().wait()

    stack.decode.script = script
    stream = stack.stream(sampling=Sampling(n=3))
    await stream.read()
    await eventually(lambda: len(stack.decode.requests) == 3)
    stream.cancel()
    await stack.quiet()


async def test_every_answer_goes_on_where_its_worker_died(model: Path) -> None:
    roles = [("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)]
    async with running_stack(model, roles=roles) as stack:
        sides = {name: stack.workers[name].decode for name in ("d0", "d1")}

        async def half(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
            first = 0 if request.answer_index else 1
            if first:
                yield admitted()
            yield tokens(first, *answer_of(request)[first:3])
            await asyncio.Event().wait()

        for side in sides.values():
            side.script = half
        stream = stack.stream(sampling=Sampling(n=3))
        responses = []
        while answers(responses) != {index: answer[:3] for index, answer in EXPECTED.items()}:
            responses.append(await stream.read())
        (dead,) = [name for name, side in sides.items() if side.requests]
        alive = sides["d1" if dead == "d0" else "d0"]
        alive.script = rest_of
        stack.prefill.script = prefill_rest
        await stack.workers[dead].die()
        responses += await stack.read_all(stream)
        assert answers(responses) == EXPECTED
        await stack.quiet()


def of_prompt(request: worker_pb2.PrefillRequest) -> list[int]:
    """The answer that the replayed output begins."""
    return next(answer for answer in EXPECTED.values() if answer[0] == request.output_token_ids[0])


async def prefill_rest(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
    async for event in prefill_of(of_prompt(request))(request):
        yield event


async def rest_of(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
    yield admitted()
    yield tokens(4, answer_of(request)[4])
    yield finished()


async def test_spans_tell_answers_apart(model: Path) -> None:
    collector = FakeCollector()
    endpoint = await collector.start()
    try:
        async with running_stack(model, otlp_endpoint=endpoint) as stack:
            stack.decode.script = scripted
            await stack.generate(sampling=Sampling(n=3))
        (root,) = collector.named("gateway.request")
        values = attributes(root)
        assert (values["gen_ai.request.choice.count"], values["baton.best_of"]) == (3, 3)
        assert values["gen_ai.response.finish_reasons"] == ["length"] * 3
        assert values["gen_ai.usage.output_tokens"] == 3 * len(ANSWER)
        detokenized = [attributes(span)["baton.answer.index"] for span in collector.named("gateway.detokenize")]
        assert sorted(detokenized) == [0, 1, 2]
    finally:
        await collector.close()
