"""The GPU's draw against the torch path's arithmetic."""

import pytest
import torch

from baton_kernels.gpu import sampling
from baton_kernels.random import gumbel_noise


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


def test_of_equal_logits_the_first_wins(kernel_device: torch.device) -> None:
    logits = torch.zeros(1, 10_000, device=kernel_device)
    logits[0, [4097, 8191, 9001]] = 3.0
    zero = torch.zeros(1, device=kernel_device)
    none = zero.long()
    assert sampling.draw(logits, zero, none, none, zero - torch.inf, logits.amax(-1)).tolist() == [4097]
