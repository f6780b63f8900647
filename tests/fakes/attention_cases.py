"""Random paged batches for attention tests: everything that is not a sequence's own is NaN."""

import random
from typing import NamedTuple

import torch
from torch import Tensor

from baton_kernels.attention import SequenceSlice

NAN = float("nan")
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LAYERS, LAYER = 3, 1


class Case(NamedTuple):
    """A step: what is in the pool already, and the new tokens' products."""

    pool: Tensor  # [num_blocks, kv_heads, layers, 2, block_size, head_dim], earlier tokens' KV in layer LAYER
    slices: list[SequenceSlice]
    qkv: Tensor  # [tokens, heads + 2 * kv_heads, head_dim]
    earlier: list[Tensor]  # [2, start, kv_heads, head_dim] of each sequence


class Shape(NamedTuple):
    """What a model and its pool look like."""

    kv_heads: int = 2
    group: int = 2
    dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32


def make_case(
    lengths: list[tuple[int, int]], shape: Shape, device: torch.device, seed: int = 0, strided: bool = False
) -> Case:
    """`lengths`: tokens before, and new ones, of each sequence."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    kv_heads, group, dim, block_size, dtype = shape
    needed = [-(-(start + new) // block_size) for start, new in lengths]
    free = rng.sample(range(sum(needed) + 3), sum(needed) + 3)
    pool = torch.full((len(free), kv_heads, LAYERS, 2, block_size, dim), NAN, dtype=dtype)
    if strided:
        pool = torch.full((len(free), 2, LAYERS, kv_heads + 1, 2, block_size, dim), NAN, dtype=dtype)
        pool = pool[:, 1].transpose(1, 2)[:, 1:]
    slices, earlier = [], []
    for (start, new), count in zip(lengths, needed, strict=True):
        blocks = [free.pop() for _ in range(count)]
        slices.append(SequenceSlice(start, new, blocks))
        kv = torch.randn(2, start, kv_heads, dim, generator=generator).to(dtype)
        for position in range(start):
            pool[blocks[position // block_size], :, LAYER, :, position % block_size] = kv[:, position].transpose(0, 1)
        earlier.append(kv)
    tokens = sum(new for _, new in lengths)
    qkv = torch.randn(tokens, kv_heads * (group + 2), dim, generator=generator).to(dtype)
    return Case(_to(pool, device), slices, qkv.to(device), earlier)


def _to(view: Tensor, device: torch.device) -> Tensor:
    """A copy on `device` with the same strides, the gaps filled with NaN."""
    base = torch.full((view.untyped_storage().size() // view.element_size(),), NAN, dtype=view.dtype, device=device)
    copy = base.as_strided(view.shape, view.stride(), view.storage_offset())
    copy.copy_(view)
    return copy


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """The definition, in float64, for a sequence's last tokens: queries [new, heads, dim], keys [all, kv, dim]."""
    q, k, v = (x.double().cpu() for x in (queries, keys, values))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    new, total = q.shape[0], k.shape[0]
    at, other = torch.arange(total - new, total)[:, None], torch.arange(total)[None, :]
    visible = (other <= at) & (other > at - (window or total))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding by its definition, in float64: x [tokens, heads, dim], cos and sin [tokens, dim]."""
    x, cos, sin = (y.double().cpu() for y in (x, cos, sin))
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]
