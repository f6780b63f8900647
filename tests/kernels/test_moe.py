"""Experts grouped by expert give what each token's experts give one by one, in float64."""

import pytest
import torch
import torch.nn.functional as F

from baton_kernels.moe import fused_moe, route

HIDDEN, INTERMEDIATE = 24, 40


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("tokens", "experts", "per_token"), [(1, 4, 2), (3, 64, 8), (50, 4, 4), (40, 1, 1)])
def test_against_one_token_at_a_time(
    tokens: int, experts: int, per_token: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=generator).to(dtype)
    gate_up = torch.randn(experts, 2 * INTERMEDIATE, HIDDEN, generator=generator).to(dtype)
    down = torch.randn(experts, HIDDEN, INTERMEDIATE, generator=generator).to(dtype)
    ids, weights = route(torch.randn(tokens, experts, generator=generator).to(dtype), per_token, normalise=False)
    expected = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    for token in range(tokens):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            expected[token] += weight * (down[expert].double() @ (F.silu(gate) * up))
    got = fused_moe(x, gate_up, down, ids, weights)
    assert got.dtype is dtype
    assert (got.double() - expected).norm() / expected.norm() < tolerance


def test_routing() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, -1.0, 4.0, 4.5]])
    ids, weights = route(logits, 2, normalise=False)
    assert ids.tolist() == [[1, 3], [0, 3]]
    torch.testing.assert_close(weights, logits.softmax(-1).gather(1, ids))
    ids, weights = route(logits, 2, normalise=True)
    assert ids.tolist() == [[1, 3], [0, 3]]
    torch.testing.assert_close(weights, logits.gather(1, ids).softmax(-1))
