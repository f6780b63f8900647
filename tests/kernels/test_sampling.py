"""What each sampling field does to logits: as transformers' processors do, or as OpenAI's formula says."""

from collections.abc import Sequence

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton_kernels.sampling import draw_floors, edit_logits, sample, top_logprobs
from baton_kernels.sampling_batch import RowParams, SamplingBatch, make_batch

VOCAB = 200
CPU = torch.device("cpu")
PLAIN = RowParams(seed=11)


def batch_of(*rows: RowParams, vocab: int = VOCAB) -> SamplingBatch:
    return make_batch(rows, vocab, CPU)


def edited(logits: torch.Tensor, row: RowParams) -> torch.Tensor:
    return edit_logits(logits[None], batch_of(row, vocab=len(logits)))[0]


def filtered(logits: torch.Tensor, row: RowParams) -> torch.Tensor:
    """The logits that a token is drawn with."""
    logits = edited(logits, row)
    floors = draw_floors(logits[None], logits.max()[None], batch_of(row, vocab=len(logits)))
    scaled = (logits - logits.max()) / row.temperature
    return torch.where(scaled < floors, -torch.inf, scaled)


def by_transformers(
    logits: torch.Tensor, processors: Sequence[LogitsProcessor], tokens: Sequence[int] = (1,)
) -> torch.Tensor:
    return LogitsProcessorList(processors)(torch.tensor([list(tokens)]), logits[None].clone())[0]


def assert_same_probabilities(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(mine.isinf(), theirs.isinf())
    assert torch.allclose(mine.softmax(-1), theirs.softmax(-1), atol=1e-6)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 3


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0])
def test_temperature_matches_transformers(temperature: float, logits: torch.Tensor) -> None:
    theirs = by_transformers(logits, [TemperatureLogitsWarper(temperature)])
    assert_same_probabilities(filtered(logits, PLAIN._replace(temperature=temperature)), theirs)


@pytest.mark.parametrize("top_k", [1, 7, VOCAB - 1])
def test_top_k_matches_transformers(top_k: int, logits: torch.Tensor) -> None:
    theirs = by_transformers(logits, [TopKLogitsWarper(top_k)])
    assert_same_probabilities(filtered(logits, PLAIN._replace(top_k=top_k)), theirs)


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.8, 0.999])
def test_top_p_matches_transformers(top_p: float, logits: torch.Tensor) -> None:
    theirs = by_transformers(logits, [TopPLogitsWarper(top_p)])
    assert_same_probabilities(filtered(logits, PLAIN._replace(top_p=top_p)), theirs)


@pytest.mark.parametrize("min_p", [1e-4, 0.1, 0.9])
def test_min_p_matches_transformers(min_p: float, logits: torch.Tensor) -> None:
    theirs = by_transformers(logits, [MinPLogitsWarper(min_p)])
    assert_same_probabilities(filtered(logits, PLAIN._replace(min_p=min_p)), theirs)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty_matches_transformers(penalty: float, logits: torch.Tensor) -> None:
    mine = edited(logits, PLAIN._replace(repetition_penalty=penalty, prompt=[1, 2, 3], output=[3, 150]))
    theirs = by_transformers(logits, [RepetitionPenaltyLogitsProcessor(penalty)], [1, 2, 3, 3, 150])
    assert torch.allclose(mine, theirs)


def test_logit_bias_matches_transformers(logits: torch.Tensor) -> None:
    mine = edited(logits, PLAIN._replace(logit_bias={9: 2.0, 150: -100.0}))
    assert torch.allclose(mine, by_transformers(logits, [SequenceBiasLogitsProcessor({(9,): 2.0, (150,): -100.0})]))


def test_bans_match_transformers(logits: torch.Tensor) -> None:
    mine = edited(logits, PLAIN._replace(banned=(17, 3, 17)))
    assert torch.equal(mine, by_transformers(logits, [SuppressTokensLogitsProcessor([17, 3], device="cpu")]))


def test_allowed_tokens_are_all_that_is_left(logits: torch.Tensor) -> None:
    mine = edited(logits, PLAIN._replace(allowed=(5, 199), banned=(5,)))
    others = [token for token in range(VOCAB) if token not in (5, 199)]
    theirs = by_transformers(logits, [SuppressTokensLogitsProcessor([*others, 5], device="cpu")])
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25), (-1.5, -2.0)])
def test_frequency_and_presence_follow_openais_formula(frequency: float, presence: float, logits: torch.Tensor) -> None:
    """mu[j] - c[j] * frequency - float(c[j] > 0) * presence, with c the counts in the output; the prompt is free."""
    row = PLAIN._replace(frequency_penalty=frequency, presence_penalty=presence, prompt=[4, 7], output=[4, 4, 9])
    expected = logits.clone()
    for token, count in ((4, 2), (9, 1)):
        expected[token] -= count * frequency + presence
    assert torch.allclose(edited(logits, row), expected)


def test_everything_at_once_is_applied_in_vllms_order(logits: torch.Tensor) -> None:
    """Bans, bias, repetition, frequency and presence, temperature, min_p, top_k, top_p: no two of these commute."""
    best = logits.topk(12).indices.tolist()
    output = [best[1], best[1], best[3]]
    row = PLAIN._replace(
        temperature=1.7,
        top_k=9,
        top_p=0.85,
        min_p=0.02,
        repetition_penalty=1.4,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        logit_bias={best[1]: -8.0, best[4]: 1.5},
        banned=(best[0],),
        prompt=[best[4], best[5]],
        output=output,
    )

    class OpenAIPenalties(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            for token in set(output):
                scores[:, token] -= 0.3 * output.count(token) + 0.2
            return scores

    order = [
        SuppressTokensLogitsProcessor([best[0]], device="cpu"),
        SequenceBiasLogitsProcessor({(best[1],): -8.0, (best[4],): 1.5}),
        RepetitionPenaltyLogitsProcessor(1.4),
        OpenAIPenalties(),
        TemperatureLogitsWarper(1.7),
        MinPLogitsWarper(0.02),
        TopKLogitsWarper(9),
        TopPLogitsWarper(0.85),
    ]
    tokens = [best[4], best[5], *output]
    theirs = by_transformers(logits, order, tokens)
    assert_same_probabilities(filtered(logits, row), theirs)
    swapped = by_transformers(logits, [order[0], order[2], order[1], *order[3:]], tokens)
    assert not torch.allclose(swapped.softmax(-1), theirs.softmax(-1), atol=1e-3)


def test_tokens_that_tie_are_kept_or_dropped_together() -> None:
    logits = torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0])
    for row in (PLAIN._replace(top_k=2), PLAIN._replace(top_p=0.6), PLAIN._replace(top_k=4, top_p=0.6)):
        assert filtered(logits, row).isfinite().tolist() == [True, True, True, True, False]


def test_a_batch_of_plain_greedy_rows_is_one_argmax(logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy, no sort, no noise: the operations that torch sees are counted."""
    called = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            called.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    many = torch.stack([logits.roll(shift) for shift in range(32)])
    batch = batch_of(*[PLAIN._replace(temperature=0.0)] * 32)
    with Recorder():
        tokens = sample(many, batch)
    assert torch.equal(tokens, many.argmax(-1))
    assert [name for name in called if name not in ("numel", "__get__")] == ["argmax"]


@pytest.mark.parametrize("row", [PLAIN, PLAIN._replace(min_p=0.1), PLAIN._replace(top_k=5, top_p=0.9)])
def test_only_top_p_alone_sorts_the_vocabulary(
    row: RowParams, logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sort(*_: object, **__: object) -> None:
        raise AssertionError("sorted the vocabulary")

    monkeypatch.setattr(torch.Tensor, "sort", no_sort)
    sample(logits[None], batch_of(row))
    with pytest.raises(AssertionError, match="sorted"):
        sample(logits[None], batch_of(PLAIN._replace(top_p=0.9)))


def test_sampling_leaves_the_logits_alone(logits: torch.Tensor) -> None:
    before = logits.clone()
    sample(logits[None], batch_of(PLAIN._replace(top_p=0.5, banned=(1,), repetition_penalty=2.0, prompt=[3])))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy(temperature: float, logits: torch.Tensor) -> None:
    assert sample(logits[None], batch_of(PLAIN._replace(temperature=temperature)))[0] == logits.argmax()


def test_logprobs_are_those_of_the_raw_logits(logits: torch.Tensor) -> None:
    both = torch.stack((logits, logits.flip(0)))
    values, ids, best = top_logprobs(both, torch.tensor([5, 6]), 3)
    expected = both.log_softmax(-1)
    assert values.tolist() == pytest.approx([float(expected[0, 5]), float(expected[1, 6])])
    assert ids.tolist() == both.topk(3).indices.tolist()
    assert torch.allclose(best, expected.topk(3).values)
    assert top_logprobs(both, torch.tensor([5, 6]), 0)[1].shape == (2, 0)


def test_seeds_of_64_bits_fit(logits: torch.Tensor) -> None:
    batch = batch_of(PLAIN._replace(seed=2**64 - 1), PLAIN._replace(seed=2**63))
    assert batch.seed.tolist() == [-1, -(2**63)]
    assert len(sample(logits.expand(2, -1), batch)) == 2
