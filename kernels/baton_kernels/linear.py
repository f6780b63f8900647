"""A matrix product with constant weights, with what stands around it in a layer: the norm before, the step behind."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

MAX_ROWS = 32  # of `gpu.linear`; above this cuBLAS is as fast (docs/log.md)


class Norm(NamedTuple):
    """A root-mean-square norm of the input."""

    weight: Tensor  # [in]
    eps: float
    weight_offset: bool = False  # whether 1 + weight is the factor (Gemma)


def fused_linear(
    x: Tensor, weight: Tensor, norm: Norm | None = None, residual: Tensor | None = None, gated: bool = False
) -> Tensor:
    """norm(x) W^T, then SwiGLU's gate or the residual: the torch path, which `gpu.linear` is tested against.

    Args:
        x: [rows, in]
        weight: [out, in]; where gated, [2 * out, in]: the gate's rows, then those it is multiplied with
        norm: of x, before the product
        residual: [rows, out], added to the result
        gated: whether silu of the first half of the product times the second half is the result (Shazeer, 2020)

    Returns:
        [rows, out] in x's dtype
    """
    if norm:
        wide = x.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
        x = (normed * (norm.weight.float() + norm.weight_offset)).to(x.dtype)
    y = F.linear(x, weight)
    if gated:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual
