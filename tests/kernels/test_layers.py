"""Element-wise torch paths against their definitions in float64."""

import pytest
import torch
import torch.nn.functional as F

from baton_kernels.layers import apply_rope, norm_heads, rms_norm, rotation_table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_in_float32_is_rounded_with_the_result_only(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 48).to(dtype), torch.randn(48) + 1.0
    got = rms_norm(x, weight, 1e-5)
    expected = F.rms_norm(x.double(), (48,), weight.double(), 1e-5)
    assert got.dtype is dtype
    # Within one rounding to dtype, which a weight or a normed value rounded before the product would exceed.
    torch.testing.assert_close(got.double(), expected, rtol=0.51 * torch.finfo(dtype).eps + 1e-6, atol=1e-7)


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_heads_are_normed_in_place_each_with_its_weight(weight_dtype: torch.dtype) -> None:
    qkv, weight = torch.randn(5, 6, 16).bfloat16(), torch.randn(4, 16).to(weight_dtype)
    before = qkv.clone()
    norm_heads(qkv[:, :4], weight, 1e-5)
    assert torch.equal(qkv[:, 4:], before[:, 4:])
    for head in range(4):
        expected = F.rms_norm(before[:, head].double(), (16,), weight[head].double(), 1e-5)
        assert (qkv[:, head].double() - expected).norm() / expected.norm() < 6e-3


def test_rotation_of_a_part_of_each_head() -> None:
    frequencies = torch.tensor([1.0, 0.1])
    cos, sin = rotation_table(frequencies, 10, factor=2.0, unrotated=4)
    x = torch.randn(3, 1, 8)
    got = apply_rope(x, cos[4:7, None], sin[4:7, None])
    assert torch.equal(got[..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]])
    for row, position in enumerate((4, 5, 6)):
        for pair, frequency in enumerate(frequencies.tolist()):
            turned = (
                torch.view_as_complex(x[row, 0, [pair, pair + 4]].double())
                * 2.0
                * torch.polar(
                    torch.tensor(1.0, dtype=torch.float64), torch.tensor(position * frequency, dtype=torch.float64)
                )
            )
            torch.testing.assert_close(
                got[row, 0, [pair, pair + 4]].double(), torch.view_as_real(turned), atol=1e-5, rtol=0
            )
