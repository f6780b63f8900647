"""Sampling: the random numbers are Philox's, the draw follows the distribution, each field does what its name says."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton_kernels.random import gumbel_noise, philox
from baton_kernels.sampling import RowParams, apply_filters, apply_penalties, sample, top_logprobs

VOCAB = 200


def row(**changes: object) -> RowParams:
    plain = RowParams(1.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, {}, (), 11, 0, (), ())
    return plain._replace(**changes)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 3


def test_philox_known_answers() -> None:
    """The published test vectors of Random123 for Philox 4x32-10 with the words that this use leaves free."""
    zeros = philox(0, torch.tensor([0]), 0)[0].tolist()
    assert [hex(word) for word in zeros] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_noise_depends_on_seed_and_position_alone() -> None:
    device = torch.device("cpu")
    base = gumbel_noise(5, 9, 1000, device)
    assert torch.equal(base, gumbel_noise(5, 9, 1000, device))
    assert torch.equal(base[:77], gumbel_noise(5, 9, 77, device))
    for seed, position in ((6, 9), (5, 10), (5 + 2**40, 9)):
        assert (gumbel_noise(seed, position, 1000, device) == base).float().mean() < 0.01


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    draws = 4000
    counts = torch.zeros(5)
    for position in range(draws):
        counts[sample(probs.log()[None], [row(position=position)])[0]] += 1
    chi_square = float(((counts - draws * probs) ** 2 / (draws * probs)).sum())
    assert chi_square < 18.5  # 99.9 % quantile with 4 degrees of freedom


def test_greedy_rows_ignore_the_seed_and_their_neighbours(logits: torch.Tensor) -> None:
    both = sample(torch.stack((logits, logits)), [row(temperature=0.0), row(seed=77)])
    assert both[0] == logits.argmax()
    assert both[1] == sample(logits[None], [row(seed=77)])[0]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"top_k": 7}, TopKLogitsWarper(7)),
        ({"top_p": 0.8}, TopPLogitsWarper(0.8)),
        ({"min_p": 0.1}, MinPLogitsWarper(0.1)),
    ],
)
def test_filters_match_transformers(ours: dict[str, float], theirs: object, logits: torch.Tensor) -> None:
    scaled = TemperatureLogitsWarper(0.7)(None, logits[None])
    mine = (logits / 0.7).clone()
    params = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | ours
    apply_filters(mine, int(params["top_k"]), params["top_p"], params["min_p"])
    assert torch.allclose(mine, theirs(None, scaled.clone())[0])  # type: ignore[operator]


def test_repetition_penalty_matches_transformers(logits: torch.Tensor) -> None:
    mine = logits.clone()
    apply_penalties(mine, row(repetition_penalty=1.3, prompt=[1, 2, 3], output=[3, 150]))
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[1, 2, 3, 3, 150]]), logits[None].clone())
    assert torch.allclose(mine, expected[0])


def test_frequency_presence_bias_and_bans(logits: torch.Tensor) -> None:
    mine = logits.clone()
    params = row(frequency_penalty=0.5, presence_penalty=0.25, output=[4, 4, 9], logit_bias={9: 2.0}, banned=(17,))
    apply_penalties(mine, params)
    expected = logits.clone()
    expected[4] -= 2 * 0.5 + 0.25
    expected[9] += 2.0 - 0.75
    expected[17] = -math.inf
    assert torch.allclose(mine, expected)


def test_top_p_keeps_at_least_one_token(logits: torch.Tensor) -> None:
    mine = logits.clone()
    apply_filters(mine, 0, 1e-9, 0.0)
    assert mine.isfinite().sum() == 1


def test_logprobs_are_those_of_the_raw_logits(logits: torch.Tensor) -> None:
    value, top = top_logprobs(logits, 5, 3)
    expected = logits.log_softmax(-1)
    assert value == pytest.approx(float(expected[5]))
    assert [token for token, _ in top] == logits.topk(3).indices.tolist()
    assert top_logprobs(logits, 5, 0)[1] == []


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy(temperature: float, logits: torch.Tensor) -> None:
    assert sample(logits[None], [row(temperature=temperature)])[0] == logits.argmax()
