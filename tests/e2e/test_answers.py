"""Several answers to one prompt: those that requests of one answer each would get, of KV that moves once."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from gateway.num_answers import answer_seed
from tests.e2e.client import ask_together, connect, token_request

SEED, N = 77, 4
PROMPT = [3000 + n * 7 % 900 for n in range(75)]  # 4 full blocks and a part of one


class Told(NamedTuple):
    """The answers to one request, by index."""

    token_ids: list[list[int]]
    ends: list[inference_pb2.GenerateResponse]


def ask(stack: LocalStack, prompt: Sequence[int], **fields: int) -> Told:
    params = sampling_pb2.SamplingParams(temperature=0.8, max_tokens=20, seed=SEED, **fields)

    async def run() -> list[inference_pb2.GenerateResponse]:
        async with connect(stack.gateway_address) as channel:
            call = inference_pb2_grpc.InferenceStub(channel).Generate(token_request(prompt, params), timeout=120)
            return [response async for response in call]

    responses = asyncio.run(run())
    ends = sorted((response for response in responses if response.finish_reason), key=lambda end: end.index)
    answers = [[token for one in responses if one.index == end.index for token in one.token_ids] for end in ends]
    return Told(answers, ends)


def test_apart_aggregated_and_alone_are_the_same(apart: LocalStack, aggregated: LocalStack) -> None:
    got = ask(apart, PROMPT, n=N)
    assert got.token_ids == ask(aggregated, PROMPT, n=N).token_ids
    singles = [
        token_request(
            PROMPT, sampling_pb2.SamplingParams(temperature=0.8, max_tokens=20, seed=answer_seed(SEED, index))
        )
        for index in range(N)
    ]
    assert got.token_ids == [answer.token_ids for answer in ask_together(aggregated.gateway_address, singles)]
    assert len({tuple(answer) for answer in got.token_ids}) == N
    assert [end.usage.cached_prompt_tokens for end in got.ends[1:]] == [len(PROMPT) - 1] * (N - 1)


def test_as_much_is_sent_as_for_one_answer(apart: LocalStack) -> None:
    one, several = ask(apart, [token + 1 for token in PROMPT]), ask(apart, [token + 2 for token in PROMPT], n=N)
    assert one.ends[0].hand_over.bytes > 0
    assert several.ends[0].hand_over.bytes == one.ends[0].hand_over.bytes
    assert [end.hand_over.bytes for end in several.ends[1:]] == [0] * (N - 1)


def test_the_best_of_several_are_some_of_them(apart: LocalStack) -> None:
    every, best = ask(apart, PROMPT, n=N), ask(apart, PROMPT, n=2, best_of=N)
    assert len(best.token_ids) == 2
    assert all(answer in every.token_ids for answer in best.token_ids)
