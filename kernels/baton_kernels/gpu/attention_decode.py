"""Attention of sequences with one new token each, straight out of the paged pool, contexts split over programs.

Split-context decoding (Dao et al., Flash-Decoding, 2023): a program takes all query heads of one KV head over one part
of one context, so each key and value is read once; a second kernel adds up the parts. What part is whose is computed
from the context on the device: launches depend on shapes alone. Torch twin: `baton_kernels.attention.paged_decode`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.attention_tiles import accumulate, cap, dot, page_rows, pool_strides, score_factors
from baton_kernels.gpu.dependent import launch_of, let_successor_start, wait_for_predecessor

MAX_SPLITS = 64
_MIN_ROWS = 16  # of a tensor core product


class DecodeConfig(NamedTuple):
    """How decode attention is cut up; `baton_kernels.tune_attention` finds the best."""

    tile_tokens: int  # keys and values a program holds at once
    warps: int
    stages: int  # tiles under way at once
    programs: int  # contexts are split until there are about as many
    min_tiles: int  # a split's least share


class DecodeScratch(NamedTuple):
    """Where parts of a split context wait to be added up. One launch at a time may use it."""

    parts: Tensor  # float32 [any number]; `scratch_elements` says how many
    peaks: Tensor  # float32 [any number], of each part the logarithm of its sum of exponentials, base 2


def num_splits(seqs: int, kv_heads: int, max_context: int, config: DecodeConfig) -> int:
    """Parts that every context is split into, a power of two; a short one leaves some of them empty."""
    tiles = -(-max_context // config.tile_tokens)
    wanted = min(config.programs // max(1, seqs * kv_heads), tiles, MAX_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


def make_scratch(seqs: int, heads: int, head_dim: int, splits: int, device: torch.device) -> DecodeScratch:
    """Scratch for `paged_decode` over up to `seqs` sequences; make it for the largest of seqs * splits."""
    parts = seqs * heads * splits
    return DecodeScratch(
        torch.empty(parts * head_dim, dtype=torch.float32, device=device),
        torch.empty(parts, dtype=torch.float32, device=device),
    )


@triton.jit
def _share(context, window, split, splits, min_tiles, TILE: tl.constexpr, WINDOWED: tl.constexpr):
    """First position attended to, and the first and the end of the tiles that are this split's."""
    first = context * 0
    if WINDOWED:
        first = tl.maximum(context - window, 0)
    first_tile = first // TILE
    end_tile = tl.cdiv(context, TILE)
    share = tl.maximum(tl.cdiv(end_tile - first_tile, splits), min_tiles)
    begin = first_tile + split * share
    return first, begin, tl.minimum(begin + share, end_tile)


@triton.jit(do_not_specialize=["layer", "splits", "min_tiles", "window"])
def _decode_kernel(
    queries, pool, tables, table_starts, contexts, rows, out, parts, peaks,
    layer, splits, min_tiles, window, factor, slope,
    query_stride, query_head_stride, out_stride,
    block_stride, head_stride, layer_stride, value_stride, slot_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(DEPENDENT)
    kv_head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + seq)
    first, begin, end = _share(context, window, split, splits, min_tiles, TILE, WINDOWED)
    if SPLIT and begin >= end:
        return
    table = tables + tl.load(table_starts + seq)
    row = tl.load(rows + seq).to(tl.int64)
    member = tl.arange(0, ROWS)
    column = tl.arange(0, DIM_PAD)
    in_row = column < DIM
    head = kv_head * GROUP + member
    mine = (member < GROUP)[:, None] & in_row[None, :]
    q = tl.load(
        queries + row * query_stride + head[:, None] * query_head_stride + column[None, :], mask=mine, other=0.0
    )
    keys = pool + kv_head.to(tl.int64) * head_stride + layer.to(tl.int64) * layer_stride
    acc = tl.zeros((ROWS, DIM_PAD), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    peak = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for tile in range(begin, end):
        position = tile * TILE + tl.arange(0, TILE)
        seen = position < context
        if WINDOWED:
            seen = seen & (position >= first)
        at = page_rows(table, position, seen, block_stride, slot_stride, BLOCK_SIZE)[:, None] + column[None, :]
        inside = seen[:, None]
        if DIM != DIM_PAD:
            inside = inside & in_row[None, :]
        k = tl.load(keys + at, mask=inside, other=0.0)
        v = tl.load(keys + value_stride + at, mask=inside, other=0.0)
        scores = cap(dot(q, tl.trans(k), UPCAST), slope, CAPPED)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        acc, total, peak = accumulate(acc, total, peak, scores, v, factor, False, UPCAST)
    let_successor_start(DEPENDENT)
    total = tl.where(total == 0.0, 1.0, total)  # no context: a padded row, zeros
    acc = acc / total[:, None]
    if SPLIT and not (split == 0 and end >= tl.cdiv(context, TILE)):
        # Parts are [seqs, heads, splits, dim].
        part = (seq * tl.num_programs(0) * GROUP + head).to(tl.int64) * splits + split
        tl.store(parts + part[:, None] * DIM + column[None, :], acc, mask=mine)
        tl.store(peaks + part, peak + tl.log2(total), mask=member < GROUP)
    else:
        to = out + row * out_stride + head[:, None] * DIM + column[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=mine)


@triton.jit(do_not_specialize=["splits", "min_tiles", "window"])
def _combine_kernel(
    parts, peaks, contexts, rows, out, splits, min_tiles, window, out_stride,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOWED: tl.constexpr,
    DEPENDENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    let_successor_start(EARLY)
    wait_for_predecessor(DEPENDENT)
    head, seq = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts + seq)
    row = tl.load(rows + seq).to(tl.int64)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, DIM_PAD)
    _, begin, end = _share(context, window, split, splits, min_tiles, TILE, WINDOWED)
    used = begin < end
    if tl.sum(used.to(tl.int32)) == 1:
        return  # a context that one program has seen whole is written already
    part = (seq * tl.num_programs(0) + head).to(tl.int64) * splits + split
    peak = tl.load(peaks + part, mask=used, other=float("-inf"))
    highest = tl.max(peak, 0)
    weight = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    share = tl.load(
        parts + part[:, None] * DIM + column[None, :], mask=used[:, None] & (column < DIM)[None, :], other=0.0
    )
    total = tl.sum(weight, 0)
    value = tl.sum(share * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * out_stride + head * DIM + column, value.to(out.dtype.element_ty), mask=column < DIM)


def paged_decode(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    rows: Tensor,
    tables: Tensor,
    table_starts: Tensor,
    contexts: Tensor,
    scale: float,
    out: Tensor,
    config: DecodeConfig,
    splits: int,
    scratch: DecodeScratch,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Writes the rows `rows` of `out`. Graph-safe: reads nothing on the host and allocates nothing.

    Args:
        queries: [tokens, heads, head_dim], the last axis contiguous; heads is a multiple of the pool's
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim], any strides but in the last axis
        rows: [seqs] int32, index of each sequence's token in queries and out; no index twice
        tables: [entries] int32 block ids, the sequences' one behind the other or in any other way
        table_starts: [seqs] int32, index in `tables` of each sequence's first block
        contexts: [seqs] int32, tokens attended to; 0 for a padded row, which gets zeros
        scale: factor on the scores, above zero
        out: [tokens, heads, head_dim], contiguous but in the first axis
        splits: from `num_splits`; the same for a captured graph's whole life
        scratch: from `make_scratch` for at least these seqs and splits; unused with one split
        window: a token at position p attends to positions above p - window; None for all
        softcap: scores become softcap * tanh(scores / softcap)
    """
    _, kv_heads, _, _, block_size, dim = pool.shape
    seqs, heads = rows.shape[0], queries.shape[1]
    if not seqs:
        return
    strides, scores, dim_pad = pool_strides(pool), score_factors(scale, softcap), triton.next_power_of_2(dim)
    group, launch = heads // kv_heads, launch_of(queries.device, queries.shape[0])
    _decode_kernel[(kv_heads, splits, seqs)](
        queries, pool, tables, table_starts, contexts, rows, out, scratch.parts, scratch.peaks,
        layer, splits, config.min_tiles, window or 0, scores.factor, scores.slope,
        queries.stride(0), queries.stride(1), out.stride(0), *strides,
        GROUP=group, ROWS=max(_MIN_ROWS, triton.next_power_of_2(group)), DIM=dim, DIM_PAD=dim_pad,
        BLOCK_SIZE=block_size, TILE=config.tile_tokens, SPLIT=splits > 1,
        WINDOWED=window is not None, CAPPED=scores.capped, UPCAST=not queries.is_cuda,
        DEPENDENT=launch.dependent, num_warps=config.warps, num_stages=config.stages, launch_pdl=launch.dependent,
    )  # fmt: skip
    if splits > 1:
        _combine_kernel[(heads, seqs)](
            scratch.parts, scratch.peaks, contexts, rows, out, splits, config.min_tiles, window or 0, out.stride(0),
            DIM=dim, DIM_PAD=dim_pad, TILE=config.tile_tokens, SPLITS=splits,
            WINDOWED=window is not None, DEPENDENT=launch.dependent, EARLY=launch.early, num_warps=4,
            launch_pdl=launch.dependent,
        )  # fmt: skip
