"""The GPU's draw against the torch path's arithmetic."""

import pytest
import torch

from baton_kernels.gpu import sampling
from baton_kernels.random import gumbel_noise
from baton_kernels.sampling import draw, draw_floors, sample
from baton_kernels.sampling_batch import RowParams, make_batch


@pytest.mark.parametrize("vocab", [40, 4099, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_what_the_torch_path_draws(vocab: int, dtype: torch.dtype, kernel_device: torch.device) -> None:
    rows = 6
    padded = torch.randn(rows, vocab + 24, generator=torch.Generator().manual_seed(vocab)).to(dtype).to(kernel_device)
    logits = padded[:, :vocab]  # strided rows
    temperatures = torch.tensor([0.0, 1.0, 0.7, 2.5, 1e-4, 1.0])
    seeds = torch.tensor([1, 2**62 + 11, -5, 7, 8, 9])
    positions = torch.tensor([0, 3, 2**20, 1, 5, 0])
    floors = torch.tensor([-torch.inf] * 5 + [-1.5])
    largests = logits.float().amax(-1)
    expected = []
    for row in range(rows):
        scaled = logits[row].float()
        if temperatures[row] > 0:
            scaled = (scaled - largests[row]) / temperatures[row].to(kernel_device)
            scaled[scaled < floors[row].item()] = -torch.inf
            noise = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], vocab)[0]
            scaled = scaled + noise.to(kernel_device)
        expected.append(int(scaled.argmax()))
    on_device = [tensor.to(kernel_device) for tensor in (temperatures, seeds, positions, floors)]
    assert sampling.draw(logits, *on_device, largests).tolist() == expected


def test_draws_of_close_calls_are_those_of_double_precision(kernel_device: torch.device) -> None:
    """Logits that undo the noise, but for less than single precision can tell."""
    vocab, seed, position = 4500, torch.tensor([5]), torch.tensor([9])
    noise = gumbel_noise(seed, position, vocab)
    logits = -noise + torch.linspace(-2e-5, 2e-5, vocab)[torch.randperm(vocab, generator=torch.manual_seed(1))]
    zero = torch.zeros(1)
    expected = (logits + noise).argmax(-1).tolist()
    on_device = [x.to(kernel_device) for x in (logits, zero + 1, seed, position, zero - torch.inf, zero)]
    assert sampling.draw(*on_device).tolist() == expected


def test_of_equal_logits_the_first_wins(kernel_device: torch.device) -> None:
    logits = torch.zeros(1, 10_000, device=kernel_device)
    logits[0, [4097, 8191, 9001]] = 3.0
    zero = torch.zeros(1, device=kernel_device)
    none = zero.long()
    assert sampling.draw(logits, zero, none, none, zero - torch.inf, logits.amax(-1)).tolist() == [4097]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_argmax(dtype: torch.dtype, kernel_device: torch.device) -> None:
    logits = torch.randn(5, 9000, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[3] = -torch.inf
    logits[3, [4097, 8191, 8999]] = 0.0  # of equal ones the first
    logits[4] = torch.nan
    strided = torch.full((5, 9016), 1e4).to(dtype)
    strided[:, :9000] = logits
    got = sampling.argmax(strided.to(kernel_device)[:, :9000]).tolist()
    assert got[:4] == logits[:4].float().argmax(-1).tolist()
    assert 0 <= got[4] < 9000


def test_draws_within_limits_what_the_torch_draw_draws(kernel_device: torch.device) -> None:
    """Every kind of limit at odd temperatures: a token at the limit itself can be drawn on both."""
    vocab = 300
    rows = [
        RowParams(temperature=0.3 + n / 6, top_k=n % 5, top_p=(1.0, 0.4)[n % 2], min_p=(0.0, 0.2)[n % 3 == 0], seed=n)
        for n in range(40)
    ]
    batch = make_batch(rows, vocab, torch.device("cpu"))
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(1))
    largests = logits.amax(-1)
    floors = draw_floors(logits, largests, batch)
    arguments = (logits, batch.temperature, batch.seed, batch.position, floors, largests)
    on_device = [tensor.to(kernel_device) for tensor in arguments]
    assert sampling.draw(*on_device).tolist() == draw(*arguments).tolist()
    raw, temperature, seed, position, _, largest = on_device
    best = sampling.draw(raw, temperature, seed, position, torch.zeros_like(temperature), largest)
    assert best.tolist() == logits.argmax(-1).tolist()  # which is at a limit of 0


@pytest.mark.gpu
def test_sample_gives_the_same_on_both_devices() -> None:
    """Through all steps, with edits: what a worker on a GPU draws from given logits is what one on a CPU draws."""
    vocab = 5000
    rows = [
        RowParams(
            temperature=0.2 * (n % 4),
            top_k=(0, 40)[n % 2],
            top_p=(1.0, 0.9)[n % 3 == 0],
            repetition_penalty=(1.0, 1.3)[n % 5 == 0],
            presence_penalty=(0.0, 0.5)[n % 7 == 0],
            logit_bias={n: 1.5},
            allowed=range(n, vocab, 2) if n % 6 == 0 else (),
            banned=(n + 1,),
            seed=2**63 + n,
            position=n,
            prompt=[1, 2, 3],
            output=[4, 4],
        )
        for n in range(48)
    ]
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(2)) * 2
    on_cpu = sample(logits, make_batch(rows, vocab, logits.device))
    on_gpu = sample(logits.cuda(), make_batch(rows, vocab, torch.device("cuda")))
    assert on_gpu.tolist() == on_cpu.tolist()
