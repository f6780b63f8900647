"""Products of few rows against float64, with everything that is fused around them."""

import pytest
import torch
from torch import Tensor

from baton_kernels.gpu.linear import LinearConfig, Workspace, default_config, fused_linear
from baton_kernels.linear import Norm
from baton_kernels.linear import fused_linear as torch_path

BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = LinearConfig(outputs=16, inputs=32, splits=1, warps=4, stages=2)


def random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def check(
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    rows: int = 1,
    num_out: int = 48,
    num_in: int = 128,
    config: LinearConfig = SMALL,
    norm: bool = False,
    offset: bool = False,
    plus: bool = False,
    gated: bool = False,
) -> None:
    x = random((rows, num_in), dtype, device, 1)
    weight = random((num_out * (2 if gated else 1), num_in), dtype, device, 2) * num_in**-0.5
    norm_weight = random((num_in,), dtype, device, 3)
    residual = random((rows, num_out), dtype, device, 4) if plus else None
    workspace = Workspace(device)
    wide_norm = Norm(norm_weight.double(), 1e-5, offset) if norm else None
    expected = torch_path(x.double(), weight.double(), wide_norm, residual.double() if plus else None, gated)
    for _ in range(2):  # the second run finds what the first has left in the workspace
        got = fused_linear(
            x, weight, workspace, Norm(norm_weight, 1e-5, offset) if norm else None, residual, gated, config
        )
        scale = expected.abs().max()
        assert ((got.double() - expected).abs().max() / scale).item() < BOUNDS[dtype]
        assert not workspace.arrived.any()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rows", [1, 2, 17, 32])
@pytest.mark.parametrize("splits", [1, 3])
def test_plain(dtype: torch.dtype, rows: int, splits: int, kernel_device: torch.device) -> None:
    check(kernel_device, dtype, rows, config=SMALL._replace(splits=splits))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("fused", [{"norm": True}, {"norm": True, "offset": True}, {"plus": True}, {"gated": True}])
def test_fused(rows: int, splits: int, fused: dict[str, bool], kernel_device: torch.device) -> None:
    check(kernel_device, rows=rows, config=SMALL._replace(splits=splits), **fused)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 9])
def test_all_at_once(dtype: torch.dtype, rows: int, kernel_device: torch.device) -> None:
    check(kernel_device, dtype, rows, config=SMALL._replace(splits=2), norm=True, gated=True, plus=True)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("num_out", "num_in"), [(50, 100), (7, 33)])
def test_sizes_that_fit_no_tile(rows: int, num_out: int, num_in: int, kernel_device: torch.device) -> None:
    check(
        kernel_device, rows=rows, num_out=num_out, num_in=num_in, config=SMALL._replace(splits=2), norm=True, gated=True
    )


@pytest.mark.parametrize("rows", [1, 8])
def test_the_default_configuration(rows: int, kernel_device: torch.device) -> None:
    config = default_config(rows, 96, 1100, gated=True)
    check(kernel_device, rows=rows, num_out=96, num_in=1100, config=config, norm=True, gated=True)


def test_too_many_rows_are_refused(kernel_device: torch.device) -> None:
    with pytest.raises(ValueError, match="got 33 rows, expected at most 32"):
        check(kernel_device, rows=33)
