"""What stands between the product that makes queries, keys and values, and attention, in one launch.

Norm of each query and key head where the model has one, rotary embedding, and the write of keys and values into the
paged pool. Everything is read and written once; sums and products are made in float32 and rounded at the end.
Torch twin: `baton_kernels.attention.rotate_and_write`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attn.base import HeadNorm
from baton_kernels.gpu.attention_tiles import pool_strides
from baton_kernels.gpu.dependent import launch_of, let_successor_start, wait_for_predecessor

_TILE_ELEMENTS = 1024  # heads times half a head that a program holds


@triton.jit(do_not_specialize=["layer"])
def _write_kernel(
    qkv, cos, sin, norm_weight, pool, slots, out,
    layer, eps, qkv_stride, angle_stride, out_stride, block_stride, head_stride,
    layer_stride, value_stride, slot_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, KEPT: tl.constexpr,
    DEPENDENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    let_successor_start(EARLY)
    wait_for_predecessor(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, HALF_PAD)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & (column < HALF)[None, :]
    at = head[:, None] * (2 * HALF) + column[None, :]
    low = tl.load(qkv + token * qkv_stride + at, mask=inside, other=0.0)
    high = tl.load(qkv + token * qkv_stride + at + HALF, mask=inside, other=0.0)
    a, b = low.to(tl.float32), high.to(tl.float32)
    turned = (head < HEADS + KV_HEADS)[:, None] & inside
    if NORM:
        square = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF)
        norm = tl.rsqrt(square + eps)[:, None]
        a = tl.where(turned, a * norm * tl.load(norm_weight + at, mask=turned, other=0.0).to(tl.float32), a)
        b = tl.where(turned, b * norm * tl.load(norm_weight + at + HALF, mask=turned, other=0.0).to(tl.float32), b)
    angle = token * angle_stride + column
    c_low = tl.load(cos + angle, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    c_high = tl.load(cos + angle + HALF, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    s_low = tl.load(sin + angle, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    s_high = tl.load(sin + angle + HALF, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    low = tl.where(turned, a * c_low + b * s_low, a).to(low.dtype)
    high = tl.where(turned, b * c_high + a * s_high, b).to(high.dtype)
    tl.debug_barrier()  # `out` may be `qkv`: all of the program's threads have read by now
    kept = (head < KEPT)[:, None] & inside
    tl.store(out + token * out_stride + at, low, mask=kept)
    tl.store(out + token * out_stride + at + HALF, high, mask=kept)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        row = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride
        row += layer.to(tl.int64) * layer_stride
        other = head - HEADS  # keys from 0 on, then values
        place = (other % KV_HEADS).to(tl.int64) * head_stride + (other // KV_HEADS).to(tl.int64) * value_stride
        written = (other >= 0)[:, None] & inside
        to = pool + row + place[:, None] + column[None, :]
        tl.store(to, low, mask=written)
        tl.store(to + HALF, high, mask=written)


def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool: Tensor,
    layer: int,
    slots: Tensor,
    heads: int,
    norm: HeadNorm | None = None,
    in_place: bool = False,
) -> Tensor:
    """Graph-safe: no host reads, and no allocation but the returned tensor.

    Args:
        qkv: [tokens, heads + 2 * kv_heads, head_dim], contiguous but in the first axis
        cos, sin: [tokens, head_dim] rows of `layers.rope_table`, contiguous
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim], any strides but in the last axis
        slots: [tokens] int32 or int64, block id * block_size + offset; -1 for a padded row, which writes no KV
        norm: what queries and keys go through before they are rotated
        in_place: rotated queries and keys are left in `qkv`, where values already are

    Returns:
        [tokens, heads, head_dim] rotated queries: a part of `qkv`, or contiguous
    """
    _, kv_heads, _, _, block_size, dim = pool.shape
    tokens, half = qkv.shape[0], dim // 2
    out = qkv if in_place else torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        half_pad = triton.next_power_of_2(half)
        tile = max(1, _TILE_ELEMENTS // half_pad)
        launch = launch_of(qkv.device, tokens)
        _write_kernel[(tokens, triton.cdiv(heads + 2 * kv_heads, tile))](
            qkv, cos, sin, cos if norm is None else norm.weight, pool, slots, out,
            layer, 0.0 if norm is None else norm.eps, qkv.stride(0), cos.stride(0), out.stride(0), *pool_strides(pool),
            HEADS=heads, KV_HEADS=kv_heads, HALF=half, HALF_PAD=half_pad, TILE=tile, BLOCK_SIZE=block_size,
            NORM=norm is not None, KEPT=heads + kv_heads if in_place else heads,
            DEPENDENT=launch.dependent, EARLY=launch.early, num_warps=4, launch_pdl=launch.dependent,
        )  # fmt: skip
    return out[:, :heads]
