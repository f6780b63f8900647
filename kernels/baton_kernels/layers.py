"""Element-wise parts of a transformer layer: the torch path, with the compiled one in front where it was built."""

import torch
from torch import Tensor

from baton_kernels import native


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, accumulated in float32 (Zhang and Sennrich, 2019).

    Args:
        x: [tokens, hidden], contiguous
        weight: [hidden]
    """
    if native.usable(x):
        return native.rms_norm(x, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    mean_square = norm.square_().div_(x.shape[-1]).add_(eps)
    normed: Tensor = (x * mean_square.rsqrt_()).to(x.dtype)
    return normed.mul_(weight)


def rope_table(max_positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding (Su et al., 2021) for every position.

    Returns:
        two tensors [max_positions, head_dim] float32, halves repeated; the sines' first half is negated, so that
        `x * cos + roll(x, head_dim / 2) * sin` rotates
    """
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.arange(max_positions, device=device, dtype=torch.float32)[:, None] * (1.0 / theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries and keys.

    Args:
        x: [tokens, heads, head_dim]
        cos, sin: [tokens, 1, head_dim] rows of `rope_table` in x's dtype
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
