"""The random numbers are Philox's, draws follow the distribution, and (seed, position) is all that decides one."""

import math

import pytest
import torch

from baton_kernels.random import gumbel_noise, philox
from baton_kernels.sampling import draw_floors, sample
from baton_kernels.sampling_batch import RowParams, make_batch

CPU = torch.device("cpu")
VOCAB = 151
DRAWS = 2000


def make_logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(5)) * 2


def draw(logits: torch.Tensor, rows: list[RowParams]) -> list[int]:
    return sample(logits, make_batch(rows, logits.shape[1], CPU)).tolist()


def chi_square_fits(counts: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Below chi-square's 99.9 % quantile; categories of fewer than 5 expected draws are put together."""
    expected = counts.sum() * probabilities
    common = expected >= 5
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    wanted = torch.cat((expected[common], expected[~common].sum()[None]))
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammainc(freedom, torch.tensor(statistic / 2, dtype=torch.float64))) < 0.999


def test_philox_known_answers() -> None:
    """The published test vectors of Random123 for Philox 4x32-10 with the words that this use leaves free."""
    zeros = philox(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))[0].tolist()
    assert [hex(word) for word in zeros] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    def noise(seed: int, position: int, size: int = 1000) -> torch.Tensor:
        return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), size)[0]

    base = noise(5, 9)
    assert torch.equal(base, noise(5, 9))
    assert torch.equal(base[:77], noise(5, 9, 77))
    together = gumbel_noise(torch.tensor([7, 5, 5]), torch.tensor([1, 8, 9]), 1000)
    assert torch.equal(together[2], base)
    for seed, position in ((6, 9), (5, 10), (5 + 2**40, 9), (-5, 9)):
        assert (noise(seed, position) == base).float().mean() < 0.01


def test_words_are_uniform_and_independent_of_their_neighbours() -> None:
    """Over seeds, positions and tokens: the bits that a draw could see a pattern in."""
    seed, position, counter = torch.meshgrid(torch.arange(24), torch.arange(24), torch.arange(24), indexing="ij")
    words = philox(seed, counter, position)
    buckets = words.flatten() >> 26  # 64 buckets
    assert chi_square_fits(torch.bincount(buckets, minlength=64).double(), torch.full((64,), 1 / 64).double())
    top = words >> 29  # 8 values
    for dim in range(4):  # seed, position, counter, word
        left, right = top.narrow(dim, 0, top.shape[dim] - 1), top.narrow(dim, 1, top.shape[dim] - 1)
        pairs = (left * 8 + right).flatten()
        assert chi_square_fits(torch.bincount(pairs, minlength=64).double(), torch.full((64,), 1 / 64).double())


def test_noise_is_gumbel() -> None:
    """Its distribution function is exp(-exp(-x)), so that of it is uniform."""
    noise = gumbel_noise(torch.arange(50), torch.arange(50), 1000).double()
    buckets = (torch.exp(-torch.exp(-noise)) * 50).long().clamp(max=49).flatten()
    assert chi_square_fits(torch.bincount(buckets, minlength=50).double(), torch.full((50,), 1 / 50).double())


SETTINGS = [
    RowParams(),
    RowParams(temperature=0.5),
    RowParams(temperature=1.5, top_k=20),
    RowParams(temperature=0.8, top_p=0.9),
    RowParams(temperature=1.2, top_k=30, top_p=0.8, min_p=0.02),
]


@pytest.mark.parametrize("over", ["positions", "seeds"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_follow_the_distribution(setting: RowParams, over: str) -> None:
    logits = make_logits()
    rows = [
        setting._replace(**({"seed": 42, "position": n} if over == "positions" else {"seed": n, "position": 3}))
        for n in range(DRAWS)
    ]
    counts = torch.bincount(torch.tensor(draw(logits.expand(DRAWS, -1), rows)), minlength=VOCAB).double()
    scaled = (logits[0] - logits.max()) / setting.temperature
    scaled[scaled < draw_floors(logits, logits.amax(-1), make_batch([setting], VOCAB, CPU))] = -torch.inf
    probabilities = scaled.double().softmax(-1)
    assert counts[probabilities == 0].sum() == 0
    assert chi_square_fits(counts, probabilities)


def mixed_rows() -> list[RowParams]:
    """Every kind of row there is, so that each has neighbours of every other kind."""
    greedy = RowParams(temperature=0.0)
    kinds = [
        *SETTINGS,
        greedy,
        greedy._replace(repetition_penalty=1.5, prompt=[1, 2], output=[3]),
        RowParams(top_k=3, frequency_penalty=1.0, output=[5, 5, 6]),
        RowParams(top_p=0.5, allowed=list(range(40, 90)), banned=(41,)),
        RowParams(min_p=0.3, logit_bias={7: 3.0}),
        RowParams(top_k=VOCAB + 5),
    ]
    return [kind._replace(seed=2**60 + index % 5, position=index) for index, kind in enumerate(kinds * 2)]


def test_a_row_draws_the_same_alone_in_any_batch_and_in_any_order() -> None:
    rows = mixed_rows()
    logits = make_logits(len(rows))
    together = draw(logits, rows)
    assert [draw(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)] == together
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    assert draw(logits[order], [rows[at] for at in order]) == [together[at] for at in order]
    assert draw(logits[3:9], rows[3:9]) == together[3:9]


def test_seed_and_position_are_all_that_a_draw_knows_of_the_past() -> None:
    """What went before in the process does not matter, as on another worker or after a preemption."""
    logits, row = make_logits(), RowParams(seed=99, position=7)
    first = draw(logits, [row])
    draw(make_logits(20), mixed_rows()[:20])
    torch.manual_seed(1234)
    assert draw(logits, [row]) == first
    others = {draw(logits, [row._replace(position=position)])[0] for position in range(30)}
    assert len(others) > 5


def test_neighbouring_positions_do_not_repeat_each_other() -> None:
    logits = make_logits()
    rows = [RowParams(seed=3, position=position) for position in range(DRAWS)]
    tokens = torch.tensor(draw(logits.expand(DRAWS, -1), rows))
    repeats = float((tokens[1:] == tokens[:-1]).double().mean())
    expected = float((logits[0].double().softmax(-1) ** 2).sum())
    assert abs(repeats - expected) < 4 * math.sqrt(expected / DRAWS)
