"""Attention of a whole prompt by torch's dense kernels: queries, keys and values are at hand, so no page is read.

cuDNN's kernel is the fastest there is on Hopper, but it is planned anew, in 40 ms, for each length and layout it meets.
So lengths are rounded up to a few, in tensors laid out alike; under a causal mask nothing sees the zeros behind.
Twin: `baton_kernels.attention.paged_attention`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from baton_kernels.attn.base import Rotated

# In order of preference. Not MATH, which would hold all scores at once.
PREFERENCE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
_MAX_DIM = 128  # of cuDNN's kernels on every GPU that has them
_SHAPES_AN_OCTAVE = 8
_LEAST_STEP = 128  # tokens


def serves(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the dense kernels take such tensors."""
    return dtype in (torch.float16, torch.bfloat16) and head_dim <= _MAX_DIM and head_dim % 8 == 0


def padded_tokens(num_tokens: int) -> int:
    """The length that a prompt is rounded up to: at most 1/8 longer, 8 lengths between powers of two."""
    step = max(_LEAST_STEP, (1 << (num_tokens - 1).bit_length()) // (2 * _SHAPES_AN_OCTAVE))
    return -(-num_tokens // step) * step


def lengths_up_to(max_tokens: int, min_tokens: int) -> list[int]:
    """All lengths that `padded_tokens` gives, for running each once before serving."""
    lengths: list[int] = []
    tokens = min_tokens
    while not lengths or lengths[-1] < max_tokens:
        lengths.append(padded_tokens(tokens))
        tokens = lengths[-1] + 1
    return lengths


def prompt_attention(new: Rotated, scale: float, preference: list[SDPBackend] = PREFERENCE) -> Tensor:
    """Causal attention of one sequence's tokens over one another.

    Args:
        new: rows of one sequence from its position 0 on; parts of one tensor are read where they are

    Returns:
        [tokens, heads, head_dim], contiguous
    """
    tokens = new.queries.shape[0]
    rows = padded_tokens(tokens)
    q, k, v = new if rows == tokens else _padded(new, rows)
    with sdpa_kernel(preference, set_priority=True):
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return attended[0].transpose(0, 1)[:tokens].contiguous()


def _padded(new: Rotated, rows: int) -> Rotated:
    """`rows` rows, zeros last, side by side as a projection leaves them."""
    heads = [x.shape[1] for x in new]
    parts = new.queries.new_zeros(rows, sum(heads), new.queries.shape[2]).split(heads, dim=1)
    for part, x in zip(parts, new, strict=True):
        part[: x.shape[0]] = x
    return Rotated(*parts)
