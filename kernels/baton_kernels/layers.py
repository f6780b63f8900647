"""Element-wise parts of a transformer layer: the torch path, with the compiled one in front where it was built."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_kernels import native, rope


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, accumulated in float32 (Zhang and Sennrich, 2019).

    Args:
        x: [tokens, hidden], contiguous
        weight: [hidden] in x's dtype, or in float32, which keeps the product with it in float32, too

    Returns:
        [tokens, hidden] in x's dtype
    """
    if native.usable(x) and weight.dtype is x.dtype:
        return native.rms_norm(x, weight, eps)
    if x.is_cuda and weight.dtype is x.dtype:
        from baton_kernels.gpu import layers as gpu  # only a GPU's torch comes with triton

        return gpu.rms_norm(x, weight, eps)
    return _normed(x, weight, eps).to(x.dtype)


def norm_heads(x: Tensor, weight: Tensor, eps: float) -> None:
    """RMS norm of each head, in place (Henry et al., 2020, with RMS instead of L2 norm).

    Args:
        x: [tokens, heads, head_dim]; may be a part of something larger
        weight: [heads, head_dim], in a dtype as in `rms_norm`
    """
    x.copy_(_normed(x, weight, eps))


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    mean_square = norm.square_().div_(x.shape[-1]).add_(eps)
    normed: Tensor = (x * mean_square.rsqrt_()).to(weight.dtype)
    return normed.mul_(weight)


def rope_table(max_positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding (Su et al., 2021) for every position.

    Returns:
        two tensors [max_positions, head_dim] float32, halves repeated; the sines' first half is negated, so that
        `x * cos + roll(x, head_dim / 2) * sin` rotates
    """
    return rotation_table(rope.default(head_dim, theta).to(device), max_positions)


def rotation_table(
    frequencies: Tensor, max_positions: int, factor: float = 1.0, unrotated: int = 0
) -> tuple[Tensor, Tensor]:
    """`rope_table` of any frequencies.

    Args:
        frequencies: [pairs] radians a position
        factor: on cosines and sines
        unrotated: elements of a head that stay as they are, half of them behind the first element of each pair and
            half behind the second

    Returns:
        two tensors [max_positions, 2 * pairs + unrotated] float32
    """
    positions = torch.arange(max_positions, device=frequencies.device, dtype=torch.float32)
    angles = positions[:, None] * frequencies
    cos = F.pad(angles.cos() * factor, (0, unrotated // 2), value=1.0)
    sin = F.pad(angles.sin() * factor, (0, unrotated // 2), value=0.0)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries and keys.

    Args:
        x: [tokens, heads, head_dim]
        cos, sin: [tokens, 1, head_dim] rows of `rope_table` in x's dtype
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
