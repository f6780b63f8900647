"""The GPU's element-wise kernels against float64."""

import pytest
import torch
from torch import Tensor

from baton_kernels.gpu import layers

BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(1, 64), (3, 576), (5, 1000)]


def random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def norm_reference(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def assert_close(got: Tensor, expected: Tensor) -> None:
    bound = BOUNDS[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [False, True])
def test_norm(shape: tuple[int, int], dtype: torch.dtype, offset: bool, kernel_device: torch.device) -> None:
    x, weight = random(shape, dtype, kernel_device), random(shape[1:], dtype, kernel_device, 1)
    before = x.clone()
    got = layers.rms_norm(x, weight, 1e-5, weight_offset=offset)
    assert_close(got, norm_reference(x, weight.double() + offset))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_norm_behind_the_residual(shape: tuple[int, int], dtype: torch.dtype, kernel_device: torch.device) -> None:
    x, residual = random(shape, dtype, kernel_device), random(shape, dtype, kernel_device, 2)
    weight = random(shape[1:], dtype, kernel_device, 1)
    total = x + residual
    got = layers.add_rms_norm(x, residual, weight, 1e-5)
    assert_close(residual, total.double())
    assert_close(got, norm_reference(residual, weight.double()))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 64), (3, 1536), (2, 1030)])
def test_silu_mul(shape: tuple[int, int], dtype: torch.dtype, kernel_device: torch.device) -> None:
    gate_up = random((shape[0], 2 * shape[1]), dtype, kernel_device)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(layers.silu_mul(gate_up), gate * torch.sigmoid(gate) * up)
