"""Causal attention of chunks of new tokens over their sequences' whole contexts, straight out of the paged pool.

A program takes a run of one sequence's new tokens with all query heads of one KV head, as rows of one tile, and walks
the context: tiles that every row sees in full need no mask, which is most of them. What earlier chunks or a cached
prefix left in the pool is read like the chunk's own. Torch twin: `baton_kernels.attention.paged_attention`.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attn.base import SequenceTensors
from baton_kernels.gpu.attention_tiles import accumulate, cap, dot, page_rows, pool_strides, score_factors


class PrefillConfig(NamedTuple):
    """How prefill attention is cut up; `baton_kernels.tune_attention` finds the best."""

    tile_rows: int  # new tokens times query heads of a KV head
    tile_tokens: int  # keys and values a program holds at once
    warps: int
    stages: int  # tiles under way at once


def tokens_per_tile(config: PrefillConfig, group: int) -> int:
    """New tokens that a program takes; `group` query heads share a KV head."""
    return config.tile_rows // group


@triton.jit
def _walk(
    acc, total, peak, q, keys, table, begin, end, context, oldest, query_position, window, factor, slope,
    block_stride, value_stride, slot_stride,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, DIM_PAD)
    for start in range(begin, end, TILE):
        position = start + tl.arange(0, TILE)
        # Without MASKED all is seen: the comparison costs nothing beside the loads.
        seen = position < context
        if MASKED and WINDOWED:
            seen = seen & (position >= oldest)
        at = page_rows(table, position, seen, block_stride, slot_stride, BLOCK_SIZE)[:, None] + column[None, :]
        inside = seen[:, None]
        if DIM != DIM_PAD:
            inside = inside & (column < DIM)[None, :]
        if MASKED or DIM != DIM_PAD:
            k = tl.load(keys + at, mask=inside, other=0.0)
            v = tl.load(keys + value_stride + at, mask=inside, other=0.0)
        else:
            k = tl.load(keys + at)
            v = tl.load(keys + value_stride + at)
        scores = cap(dot(q, tl.trans(k), UPCAST), slope, CAPPED)
        if MASKED:
            visible = position[None, :] <= query_position[:, None]
            if WINDOWED:
                visible = visible & (position[None, :] > query_position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        acc, total, peak = accumulate(acc, total, peak, scores, v, factor, MASKED and WINDOWED, UPCAST)
    return acc, total, peak


@triton.jit(do_not_specialize=["layer", "window"])
def _prefill_kernel(
    queries, pool, tables, table_starts, contexts, firsts, lengths, tile_seqs, tile_tokens, out,
    layer, window, factor, slope,
    query_stride, query_head_stride, out_stride,
    block_stride, head_stride, layer_stride, value_stride, slot_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    kv_head, index = tl.program_id(0), tl.program_id(1)
    seq = tl.load(tile_seqs + index)
    token = tl.load(tile_tokens + index)  # the tile's first new token
    length = tl.load(lengths + seq)
    context = tl.load(contexts + seq)
    table = tables + tl.load(table_starts + seq)
    TOKENS: tl.constexpr = ROWS // GROUP
    member = tl.arange(0, ROWS)
    column = tl.arange(0, DIM_PAD)
    my_token = token + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mine = ((member < TOKENS * GROUP) & (my_token < length))[:, None] & (column < DIM)[None, :]
    row = tl.load(firsts + seq).to(tl.int64) + my_token
    q = tl.load(
        queries + row[:, None] * query_stride + head[:, None] * query_head_stride + column[None, :],
        mask=mine,
        other=0.0,
    )
    before = context - length
    query_position = before + tl.minimum(my_token, length - 1)
    keys = pool + kv_head.to(tl.int64) * head_stride + layer.to(tl.int64) * layer_stride
    acc = tl.zeros((ROWS, DIM_PAD), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    peak = tl.full((ROWS,), float("-inf"), dtype=tl.float32)

    # Keys [begin, end) are seen by some row, those of [full_begin, full_end) by all.
    end = before + tl.minimum(token + TOKENS, length)
    full_end = (before + token + 1) // TILE * TILE
    oldest = end * 0
    begin = end * 0
    full_begin = end * 0
    if WINDOWED:
        oldest = tl.maximum(before + token + 1 - window, 0)
        begin = oldest // TILE * TILE
        full_begin = tl.cdiv(tl.maximum(end - window, 0), TILE) * TILE
        if full_begin >= full_end:  # no such tile: one masked walk over everything
            full_begin = begin
            full_end = begin
        acc, total, peak = _walk(
            acc, total, peak, q, keys, table, begin, full_begin, end, oldest, query_position, window, factor, slope,
            block_stride, value_stride, slot_stride,
            DIM, DIM_PAD, BLOCK_SIZE, TILE, True, True, CAPPED, UPCAST,
        )  # fmt: skip
    acc, total, peak = _walk(
        acc, total, peak, q, keys, table, full_begin, full_end, end, oldest, query_position, window, factor, slope,
        block_stride, value_stride, slot_stride,
        DIM, DIM_PAD, BLOCK_SIZE, TILE, False, WINDOWED, CAPPED, UPCAST,
    )  # fmt: skip
    acc, total, peak = _walk(
        acc, total, peak, q, keys, table, full_end, end, end, oldest, query_position, window, factor, slope,
        block_stride, value_stride, slot_stride,
        DIM, DIM_PAD, BLOCK_SIZE, TILE, True, WINDOWED, CAPPED, UPCAST,
    )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # 0: a tile of nothing, in a padded batch
    to = out + row[:, None] * out_stride + head[:, None] * DIM + column[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=mine)


def paged_prefill(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    chunks: SequenceTensors,
    tables: Tensor,
    tile_seqs: Tensor,
    tile_tokens: Tensor,
    scale: float,
    out: Tensor,
    config: PrefillConfig,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Writes the new tokens' rows of `out`, for the sequences that tiles name. No host reads, no allocation.

    Args:
        queries, pool, scale, out, window, softcap: as in `attention_decode.paged_decode`
        tables: [entries] int32 block ids
        tile_seqs: [tiles] int32 index into `chunks`
        tile_tokens: [tiles] int32 each tile's first new token, a multiple of `tokens_per_tile(config, group)`; the
            tiles with the longest way first keep the device busy to the end
    """
    _, kv_heads, _, _, block_size, dim = pool.shape
    tiles, group = tile_seqs.shape[0], queries.shape[1] // kv_heads
    if not tiles:
        return
    strides, scores = pool_strides(pool), score_factors(scale, softcap)
    _prefill_kernel[(kv_heads, tiles)](
        queries, pool, tables, chunks.table_starts, chunks.contexts, chunks.firsts, chunks.lengths, tile_seqs,
        tile_tokens, out, layer, window or 0, scores.factor, scores.slope,
        queries.stride(0), queries.stride(1), out.stride(0), *strides,
        GROUP=group, ROWS=config.tile_rows, DIM=dim, DIM_PAD=triton.next_power_of_2(dim), BLOCK_SIZE=block_size,
        TILE=config.tile_tokens, WINDOWED=window is not None, CAPPED=scores.capped, UPCAST=not queries.is_cuda,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
