"""Sampling fields through whole stacks, apart and aggregated: the answers of the small model are as promised."""

from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.local.stack import LocalStack
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from tests.e2e.client import MODEL, greedy, token_request

PROMPT = [(7919 * n) % 48_000 + 20 for n in range(530)]  # two chunks of at most 512 tokens


def ask(address: str, request: inference_pb2.GenerateRequest) -> inference_pb2.GenerateResponse:
    """All responses in one."""
    whole, text = inference_pb2.GenerateResponse(), ""
    with grpc.insecure_channel(address) as channel:
        for response in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=200):
            text += response.text
            whole.MergeFrom(response)
    whole.text = text
    return whole


@pytest.fixture(params=["apart", "aggregated"])
def address(request: pytest.FixtureRequest) -> str:
    stack: LocalStack = request.getfixturevalue(request.param)
    return stack.gateway_address


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> torch.Tensor:
    """[prompt - 1, vocab] log-probabilities of all positions but the first, by transformers in float32."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)


def assert_told_right(told: Sequence[sampling_pb2.TokenLogprobs], expected: torch.Tensor, count: int) -> None:
    assert not told[0].HasField("sampled")
    assert [entry.sampled.token_id for entry in told[1:]] == PROMPT[1:]
    own = expected.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert torch.allclose(torch.tensor([entry.sampled.logprob for entry in told[1:]]), own, atol=2e-3)
    best = torch.tensor([[one.logprob for one in entry.top] for entry in told[1:]])
    assert torch.allclose(best, expected.topk(count).values, atol=2e-3)


def test_prompt_logprobs_match_transformers_with_a_warm_cache_too(address: str, expected: torch.Tensor) -> None:
    ask(address, token_request(PROMPT, greedy(2)))
    answer = ask(address, token_request(PROMPT, greedy(2, prompt_logprobs=2)))
    assert_told_right(answer.prompt_logprobs, expected, 2)
    assert answer.usage.cached_prompt_tokens == 0
    assert len(answer.token_ids) == 2


def test_echo_scores_a_prompt(address: str) -> None:
    request = inference_pb2.GenerateRequest(model=MODEL, text="Once upon a time", echo=True)
    request.sampling.MergeFrom(greedy(0, logprobs=1))
    answer = ask(address, request)
    assert answer.text == "Once upon a time"
    assert [entry.sampled.token_id for entry in answer.prompt_logprobs[1:]] == list(answer.prompt_token_ids)[1:]
    assert not answer.token_ids


def test_words_that_are_banned_do_not_come(address: str) -> None:
    request = inference_pb2.GenerateRequest(model=MODEL, text="The capital of France is", sampling=greedy(8))
    plain = ask(address, request)
    word = "Paris"
    assert word in plain.text
    request.sampling.bad_words.append(word)
    assert word not in ask(address, request).text
    only = [plain.token_ids[1], plain.token_ids[3]]
    request.sampling.allowed_token_ids.extend(only)
    assert set(ask(address, request).token_ids) <= set(only)
