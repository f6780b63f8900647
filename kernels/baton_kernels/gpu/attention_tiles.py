"""What the attention kernels share: page arithmetic, one tile of online softmax, and their common arguments.

Keys and values are gathered token by token through the block table, so a tile spans several blocks, or a part of one.
Softmax runs over tiles (Milakov and Gimelshein, 2018; Dao, FlashAttention-2, 2023), in powers of two: exp2 is one
instruction.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634


class PoolStrides(NamedTuple):
    """In elements, of a pool [num_blocks, kv_heads, layers, 2, block_size, head_dim]."""

    block: int
    head: int
    layer: int
    value: int  # from a key to its value
    slot: int


class Scores(NamedTuple):
    """How products of queries and keys become exponents of two: see `cap` and `accumulate`."""

    factor: float
    slope: float
    capped: bool


def pool_strides(pool: Tensor) -> PoolStrides:
    """The strides that kernels take.

    Raises:
        ValueError: the rows of head_dim elements are not contiguous.
    """
    *strides, last = pool.stride()
    if last != 1:
        raise ValueError(f"got a pool with strides {pool.stride()}, expected 1 in the last axis")
    return PoolStrides(*strides)


def score_factors(scale: float, softcap: float | None) -> Scores:
    """Folds the scale, the soft cap and the change of base into two factors.

    Raises:
        ValueError: a scale or soft cap that is not positive; the maximum is taken before the scale is applied.
    """
    if scale <= 0 or (softcap is not None and softcap <= 0):
        raise ValueError(f"got scale {scale} and softcap {softcap}, expected both above zero")
    if softcap is None:
        return Scores(scale * LOG2E, 0.0, False)
    return Scores(softcap * LOG2E, 2 * LOG2E * scale / softcap, True)


@triton.jit
def page_rows(table, position, seen, block_stride, slot_stride, BLOCK_SIZE: tl.constexpr):
    """[tokens] int64 offsets of `position`s from their head's first row; 0 where not `seen`, which reads nothing."""
    block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
    return block * block_stride + (position % BLOCK_SIZE) * slot_stride


@triton.jit
def dot(a, b, UPCAST: tl.constexpr):
    """a @ b in float32."""
    if UPCAST:  # Triton's interpreter multiplies bfloat16 wrongly and sums float16 in float16
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(a, b, input_precision="ieee")
    return product


@triton.jit
def cap(scores, slope, CAPPED: tl.constexpr):
    """tanh(scores * slope / (2 * LOG2E)), by the one exponential that it takes; exact at both ends."""
    if CAPPED:
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * slope))
    return scores


@triton.jit
def accumulate(acc, total, peak, scores, values, factor, EMPTY_ROWS: tl.constexpr, UPCAST: tl.constexpr):
    """Adds a tile to the running softmax: acc [rows, dim], total and peak [rows], scores [rows, tokens].

    EMPTY_ROWS: whether rows may have seen nothing so far, which leaves no maximum to subtract.
    """
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    base = new_peak
    if EMPTY_ROWS:
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores * factor - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None] + dot(weights.to(values.dtype), values, UPCAST)
    return acc, total, new_peak
