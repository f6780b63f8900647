"""Apart, aggregated and transformers give the same tokens, in float32 greedy, with and without prefix hits."""

from pathlib import Path
from typing import NamedTuple

import pytest

from baton.local.stack import LocalStack
from tests.e2e.client import ask_together, greedy, token_request
from tests.e2e.oracle import Expected, Oracle, prompts_with_clear_answers

# From one token to several chunks of 512; block borders and their neighbours.
LENGTHS = [1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 32, 33, 48, 63, 64, 65, 80, 100, 127, 128, 129, 160, 200, 256, 300]
LENGTHS += [400, 511, 513, 700, 1000, 1500, 2000]
MAX_TOKENS = 12


class Cases(NamedTuple):
    prompts: list[list[int]]
    answers: list[Expected]


@pytest.fixture(scope="module")
def cases(smollm2: Path) -> Cases:
    assert len(LENGTHS) >= 32
    return Cases(*prompts_with_clear_answers(Oracle(smollm2), LENGTHS, MAX_TOKENS))


def check(stack: LocalStack, cases: Cases, hits_expected: bool) -> None:
    requests = [token_request(prompt, greedy(MAX_TOKENS)) for prompt in cases.prompts]
    for prompt, expected, got in zip(
        cases.prompts, cases.answers, ask_together(stack.gateway_address, requests, width=2), strict=True
    ):
        assert got.token_ids == expected.token_ids, f"prompt of {len(prompt)} tokens"
        assert got.usage.prompt_tokens == len(prompt)
        assert got.usage.completion_tokens == len(expected.token_ids)
        # All full blocks but the one that holds the last token, which is always computed.
        cached = (len(prompt) - 1) // 16 * 16 if hits_expected else 0
        assert got.usage.cached_prompt_tokens == cached


def test_apart_without_and_with_prefix_hits(apart: LocalStack, cases: Cases) -> None:
    check(apart, cases, hits_expected=False)
    check(apart, cases, hits_expected=True)


def test_aggregated_without_and_with_prefix_hits(aggregated: LocalStack, cases: Cases) -> None:
    check(aggregated, cases, hits_expected=False)
    check(aggregated, cases, hits_expected=True)


def test_the_kv_really_travels(apart: LocalStack) -> None:
    prompt = list(range(1000, 1100))
    (first,) = ask_together(apart.gateway_address, [token_request(prompt, greedy(4))])
    assert (first.hand_over.prefill_worker, first.hand_over.decode_worker) == ("prefill-0", "decode-0")
    assert first.hand_over.blocks == 7
    assert first.hand_over.bytes == 7 * 30 * 2 * 3 * 16 * 64 * 4
    (second,) = ask_together(apart.gateway_address, [token_request(prompt, greedy(4))])
    assert second.hand_over.blocks == 1  # decode has kept the six full ones
    assert second.token_ids == first.token_ids


def test_a_seed_gives_the_same_draw_apart_and_aggregated(apart: LocalStack, aggregated: LocalStack) -> None:
    from baton.rpc.sampling_pb2 import SamplingParams

    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=20240601, max_tokens=24)
    requests = [token_request(list(range(50 + n, 90 + n)), sampling) for n in range(4)]
    one = ask_together(apart.gateway_address, requests)
    two = ask_together(aggregated.gateway_address, requests, width=1)
    assert [answer.token_ids for answer in one] == [answer.token_ids for answer in two]
