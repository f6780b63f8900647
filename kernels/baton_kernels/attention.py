"""Attention over a paged, block-major KV pool: the torch path, which is the specification and runs on the CPU.

The pool is one tensor [num_blocks, kv_heads, layers, 2, block_size, head_dim]. Seen as rows of `block_size * head_dim`
elements, the keys of block b, head h, layer l are row ((b * kv_heads + h) * layers + l) * 2, the values the row behind.
So one table of rows for layer 0 serves every layer by adding `2 * layer`, and a gather copies large runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class SequenceSlice(NamedTuple):
    """One sequence's share of a flattened batch: `num_tokens` new tokens at positions `start`, `start + 1`, ..."""

    start: int
    num_tokens: int
    block_ids: Sequence[int]


class DecodeGroup(NamedTuple):
    """Sequences with one new token each and about equal context, attended to in one call."""

    tokens: Tensor | None  # [seqs] index into the flattened batch; None: the whole batch in its order
    rows: Tensor  # [2, seqs, kv_heads, blocks] rows of keys and values for layer 0
    mask: Tensor  # [seqs, 1, 1, blocks * block_size] True where attended


class PrefillSlice(NamedTuple):
    """A sequence with several new tokens."""

    first: int  # index into the flattened batch
    num_tokens: int
    context: int  # tokens attended to, the new ones included
    rows: Tensor  # [2, kv_heads, blocks]
    mask: Tensor | None  # [num_tokens, context] or None for plain causal


class PagedBatch(NamedTuple):
    """Where a flattened batch's KV goes and what each token attends to; built once a step, used by every layer."""

    write_rows: Tensor  # [2, tokens, kv_heads] rows of head_dim elements for layer 0
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSlice, ...]


def plan_batch(sequences: Sequence[SequenceSlice], pool: Tensor) -> PagedBatch:
    """Lays out `sequences` one behind the other; `pool` is [num_blocks, kv_heads, layers, 2, block_size, head_dim]."""
    _, kv_heads, layers, _, block_size, _ = pool.shape
    heads = torch.arange(kv_heads) * (layers * 2)  # [kv_heads]
    slots: list[int] = []  # [tokens] block_id * block_size + offset
    decodes: list[tuple[int, SequenceSlice]] = []
    prefills: list[PrefillSlice] = []
    for seq in sequences:
        first = len(slots)
        slots.extend(
            seq.block_ids[position // block_size] * block_size + position % block_size
            for position in range(seq.start, seq.start + seq.num_tokens)
        )
        if seq.num_tokens == 1:
            decodes.append((first, seq))
        else:
            prefills.append(_prefill_slice(first, seq, heads, kv_heads, layers, block_size, pool.device))
    slot = torch.tensor(slots, dtype=torch.long)
    block_row = (slot // block_size * (kv_heads * layers * 2))[:, None] + heads  # [tokens, kv_heads]
    key_rows = block_row * block_size + (slot % block_size)[:, None]
    write_rows = torch.stack((key_rows, key_rows + block_size)).to(pool.device)
    groups = tuple(
        _decode_group(group, heads, len(slots), kv_heads, layers, block_size, pool.device)
        for group in _group_by_context(decodes, block_size)
    )
    return PagedBatch(write_rows, groups, tuple(prefills))


def _group_by_context(
    decodes: list[tuple[int, SequenceSlice]], block_size: int
) -> list[list[tuple[int, SequenceSlice]]]:
    """Groups within which padding to the longest at most doubles the work of the shortest; in batch order where one."""
    groups: list[list[tuple[int, SequenceSlice]]] = []
    for item in sorted(decodes, key=lambda item: item[1].start):
        if groups and item[1].start // block_size <= 2 * (groups[-1][0][1].start // block_size) + 4:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups if len(groups) > 1 else [decodes] if decodes else []


def _decode_group(
    group: list[tuple[int, SequenceSlice]],
    heads: Tensor,
    num_tokens: int,
    kv_heads: int,
    layers: int,
    block_size: int,
    device: torch.device,
) -> DecodeGroup:
    num_blocks = max(seq.start // block_size + 1 for _, seq in group)
    table = torch.zeros(len(group), num_blocks, dtype=torch.long)
    for row, (_, seq) in enumerate(group):
        used = seq.start // block_size + 1
        table[row, :used] = torch.tensor(seq.block_ids[:used])
    rows = table[:, None, :] * (kv_heads * layers * 2) + heads[None, :, None]  # [seqs, kv_heads, blocks]
    last = torch.tensor([seq.start for _, seq in group])
    mask = torch.arange(num_blocks * block_size)[None, :] <= last[:, None]
    tokens = [first for first, _ in group]
    return DecodeGroup(
        None if tokens == list(range(num_tokens)) else torch.tensor(tokens).to(device),
        torch.stack((rows, rows + 1)).to(device),
        mask[:, None, None, :].to(device),
    )


def _prefill_slice(
    first: int,
    seq: SequenceSlice,
    heads: Tensor,
    kv_heads: int,
    layers: int,
    block_size: int,
    device: torch.device,
) -> PrefillSlice:
    context = seq.start + seq.num_tokens
    used = -(-context // block_size)
    table = torch.tensor(seq.block_ids[:used])
    rows = table[None, :] * (kv_heads * layers * 2) + heads[:, None]  # [kv_heads, blocks]
    mask = None
    if seq.start:
        positions = torch.arange(seq.start, context)
        mask = (torch.arange(context)[None, :] <= positions[:, None]).to(device)
    return PrefillSlice(first, seq.num_tokens, context, torch.stack((rows, rows + 1)).to(device), mask)


def write_kv(pool: Tensor, layer: int, batch: PagedBatch, keys_values: Tensor) -> None:
    """Stores new keys and values of one layer.

    Args:
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]
        keys_values: [2, tokens, kv_heads, head_dim]
    """
    block_size, head_dim = pool.shape[-2:]
    rows = (batch.write_rows + layer * 2 * block_size).flatten()
    pool.view(-1, head_dim).index_copy_(0, rows, keys_values.reshape(-1, head_dim))


def paged_attention(queries: Tensor, pool: Tensor, layer: int, batch: PagedBatch, scale: float) -> Tensor:
    """Causal attention of new tokens over their sequences' whole contexts, which `write_kv` has completed.

    Args:
        queries: [tokens, heads, head_dim]; heads is a multiple of the pool's kv_heads (grouped-query attention)
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]
        scale: factor on the scores

    Returns:
        [tokens, heads, head_dim]
    """
    kv_heads, (block_size, head_dim) = pool.shape[1], pool.shape[-2:]
    rows_view = pool.view(-1, block_size * head_dim)
    out = torch.empty_like(queries)
    for group in batch.decodes:
        seqs = group.mask.shape[0]
        keys, values = rows_view.index_select(0, (group.rows + 2 * layer).flatten()).view(
            2, seqs, kv_heads, -1, head_dim
        )
        # One new token a sequence: the heads that share a KV head stand where query positions usually do.
        q = queries if group.tokens is None else queries.index_select(0, group.tokens)
        o = F.scaled_dot_product_attention(
            q.view(seqs, kv_heads, -1, head_dim), keys, values, attn_mask=group.mask, scale=scale
        ).reshape(seqs, -1, head_dim)
        if group.tokens is None:
            return o
        out.index_copy_(0, group.tokens, o)
    for part in batch.prefills:
        span = slice(part.first, part.first + part.num_tokens)
        keys, values = rows_view.index_select(0, (part.rows + 2 * layer).flatten()).view(2, kv_heads, -1, head_dim)[
            :, :, : part.context
        ]
        q = queries[span].transpose(0, 1)  # [heads, tokens, head_dim]
        o = F.scaled_dot_product_attention(
            q[None],
            keys[None],
            values[None],
            attn_mask=part.mask,
            is_causal=part.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        out[span] = o[0].transpose(0, 1)
    return out
