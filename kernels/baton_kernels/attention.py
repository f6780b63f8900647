"""Attention over a paged, block-major KV pool: the torch path, which is the specification and runs everywhere.

`rotate_and_write` and `paged_attention` are what models call; a batch that another backend (`baton_kernels.attn`) has
planned goes to that backend.

The pool is one tensor [num_blocks, kv_heads, layers, 2, block_size, head_dim]. Seen as rows of `block_size * head_dim`
elements, the keys of block b, head h, layer l are row ((b * kv_heads + h) * layers + l) * 2, the values the row behind.
So one table of rows for layer 0 serves every layer by adding `2 * layer`, and a gather copies large runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_kernels import native
from baton_kernels.attn.base import FlatBatch, HeadNorm, Rotated
from baton_kernels.layers import apply_rope, norm_heads


class SequenceSlice(NamedTuple):
    """One sequence's share of a flattened batch: `num_tokens` new tokens at positions `start`, `start + 1`, ..."""

    start: int
    num_tokens: int
    block_ids: Sequence[int]


class DecodeGroup(NamedTuple):
    """Sequences with one new token each, attended to in one call."""

    tokens: Tensor  # [seqs] int64 index into the flattened batch
    tables: Tensor  # [seqs, blocks] int32 block ids, 0 behind a sequence's last
    contexts: Tensor  # [seqs] int32 tokens attended to


class PrefillSlice(NamedTuple):
    """A sequence with several new tokens."""

    first: int  # index into the flattened batch
    num_tokens: int
    context: int  # tokens attended to, the new ones included
    rows: Tensor  # [2, kv_heads, blocks] rows of keys and values for layer 0
    mask: Tensor | None  # [num_tokens, context] True where attended, or None for plain causal


class TorchBatch(NamedTuple):
    """Where a flattened batch's KV goes and what each token attends to; built once a step, used by every layer."""

    write_rows: Tensor  # [tokens, kv_heads] int64 rows of head_dim elements for the keys of layer 0
    decodes: DecodeGroup | None
    prefills: tuple[PrefillSlice, ...]


PagedBatch = TorchBatch | FlatBatch  # what an attention backend's `plan` returns; models pass it on


def plan_batch(sequences: Sequence[SequenceSlice], pool: Tensor) -> TorchBatch:
    """Lays out `sequences` one behind the other; `pool` is [num_blocks, kv_heads, layers, 2, block_size, head_dim]."""
    _, kv_heads, layers, _, block_size, _ = pool.shape
    heads = torch.arange(kv_heads) * (layers * 2)  # [kv_heads]
    slots: list[int] = []  # [tokens] block_id * block_size + offset
    decodes: list[tuple[int, SequenceSlice]] = []
    prefills: list[PrefillSlice] = []
    for seq in sequences:
        if seq.num_tokens == 1:
            decodes.append((len(slots), seq))
        else:
            prefills.append(_prefill_slice(len(slots), seq, heads, pool))
        slots.extend(
            seq.block_ids[position // block_size] * block_size + position % block_size
            for position in range(seq.start, seq.start + seq.num_tokens)
        )
    slot = torch.tensor(slots, dtype=torch.long)
    block_row = (slot // block_size * (kv_heads * layers * 2))[:, None] + heads  # [tokens, kv_heads]
    write_rows = block_row * block_size + (slot % block_size)[:, None]
    group = _decode_group(decodes, block_size, pool.device) if decodes else None
    return TorchBatch(write_rows.to(pool.device), group, tuple(prefills))


def _decode_group(decodes: list[tuple[int, SequenceSlice]], block_size: int, device: torch.device) -> DecodeGroup:
    width = max(seq.start // block_size + 1 for _, seq in decodes)
    tables = torch.zeros(len(decodes), width, dtype=torch.int32)
    for row, (_, seq) in enumerate(decodes):
        used = seq.start // block_size + 1
        tables[row, :used] = torch.tensor(seq.block_ids[:used], dtype=torch.int32)
    contexts = torch.tensor([seq.start + 1 for _, seq in decodes], dtype=torch.int32)
    tokens = torch.tensor([first for first, _ in decodes])
    return DecodeGroup(tokens.to(device), tables.to(device), contexts.to(device))


def _prefill_slice(first: int, seq: SequenceSlice, heads: Tensor, pool: Tensor) -> PrefillSlice:
    _, kv_heads, layers, _, block_size, _ = pool.shape
    context = seq.start + seq.num_tokens
    table = torch.tensor(seq.block_ids[: -(-context // block_size)])
    rows = table[None, :] * (kv_heads * layers * 2) + heads[:, None]  # [kv_heads, blocks]
    mask = None
    if seq.start:
        positions = torch.arange(seq.start, context)
        mask = (torch.arange(context)[None, :] <= positions[:, None]).to(pool.device)
    return PrefillSlice(first, seq.num_tokens, context, torch.stack((rows, rows + 1)).to(pool.device), mask)


def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool: Tensor,
    layer: int,
    batch: PagedBatch,
    heads: int,
    norm: HeadNorm | None = None,
) -> Tensor | Rotated:
    """Applies rotary embedding to queries and keys, and stores keys and values of one layer in the pool.

    Args:
        qkv: [tokens, heads + 2 * kv_heads, head_dim]; may be overwritten
        cos, sin: [tokens, head_dim] rows of `rope_table` in qkv's dtype
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]
        norm: what queries and keys go through before they are rotated

    Returns:
        rotated queries, and what else the backend keeps at hand, for `paged_attention`
    """
    if isinstance(batch, FlatBatch):
        return batch.backend.rotate_and_write(qkv, cos, sin, pool, layer, batch, heads, norm)
    if norm is not None:
        norm_heads(qkv[:, : heads + pool.shape[1]], norm.weight, norm.eps)
    if native.usable(qkv):
        native.rotate_and_write(qkv, cos, sin, pool, batch.write_rows, heads, layer)
        return qkv[:, :heads]
    kv_heads = pool.shape[1]
    rotated = apply_rope(qkv[:, : heads + kv_heads], cos[:, None], sin[:, None])
    write_kv(pool, layer, batch, torch.stack((rotated[:, heads:], qkv[:, heads + kv_heads :])))
    return rotated[:, :heads]


def write_kv(pool: Tensor, layer: int, batch: TorchBatch, keys_values: Tensor) -> None:
    """Stores new keys and values of one layer.

    Args:
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]
        keys_values: [2, tokens, kv_heads, head_dim]
    """
    block_size, head_dim = pool.shape[-2:]
    keys = batch.write_rows + layer * 2 * block_size
    rows = torch.stack((keys, keys + block_size)).flatten()
    pool.view(-1, head_dim).index_copy_(0, rows, keys_values.reshape(-1, head_dim))


def paged_attention(
    queries: Tensor | Rotated,
    pool: Tensor,
    layer: int,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of new tokens over their sequences' contexts, whose KV is in the pool by now.

    Args:
        queries: [tokens, heads, head_dim]; heads is a multiple of the pool's kv_heads (grouped-query attention).
            Or what `rotate_and_write` has returned for the same batch
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]
        scale: factor on the scores
        window: the token at position p attends to positions above p - window; None for all up to p
        softcap: scores become softcap * tanh(scores / softcap) before the softmax

    Returns:
        [tokens, heads, head_dim]
    """
    if isinstance(batch, FlatBatch):
        return batch.backend.attend(queries, pool, layer, batch, scale, window, softcap)
    assert isinstance(queries, Tensor)
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    if batch.decodes:
        group = batch.decodes
        # Contexts that no window cuts are the usual case, also of models that have windows.
        cut = window if window is not None and group.tables.shape[1] * pool.shape[4] > window else None
        if cut is None and softcap is None and native.usable(queries):
            native.paged_decode(queries, pool, layer, *group, scale, out)
        else:
            paged_decode(queries, pool, layer, *group, scale, out, cut, softcap)
    for part in batch.prefills:
        span = slice(part.first, part.first + part.num_tokens)
        out[span] = _prefill(queries[span], pool, layer, part, scale, window, softcap)
    return out


def paged_decode(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    tokens: Tensor,
    tables: Tensor,
    contexts: Tensor,
    scale: float,
    out: Tensor,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Attention of sequences with one new token each, written into the rows `tokens` of `out` [tokens, heads, dim].

    Args:
        queries, pool, scale, window, softcap: as in `paged_attention`
        tokens, tables, contexts: as in `DecodeGroup`
    """
    _, kv_heads, layers, _, block_size, head_dim = pool.shape
    seqs = tables.shape[0]
    first_key = first_block = torch.zeros_like(contexts)  # [seqs]
    if window is not None:
        first_key = (contexts - window).clamp(min=0)
        tables, first_block = _tables_of_windows(tables, first_key // block_size, window, block_size)
    heads = torch.arange(kv_heads, device=pool.device) * (layers * 2) + 2 * layer
    rows = tables[:, None, :].long() * (kv_heads * layers * 2) + heads[None, :, None]  # [seqs, kv_heads, width]
    keys, values = (
        pool.view(-1, block_size * head_dim)
        .index_select(0, torch.stack((rows, rows + 1)).flatten())
        .view(2, seqs, kv_heads, -1, head_dim)
    )
    positions = first_block[:, None] * block_size + torch.arange(keys.shape[2], device=pool.device)
    mask = (positions < contexts[:, None]) & (positions >= first_key[:, None])
    # What lies behind a context is somebody else's or nobody's, and a NaN times a weight of zero is still a NaN.
    foreign = ~mask[:, None, :, None]
    keys, values = keys.masked_fill(foreign, 0), values.masked_fill(foreign, 0)
    # One new token a sequence: the heads that share a KV head stand where query positions usually do.
    q = queries.index_select(0, tokens).view(seqs, kv_heads, -1, head_dim)
    o = _attend(q, keys, values, mask[:, None, None, :], scale, softcap)
    out.index_copy_(0, tokens, o.reshape(seqs, -1, head_dim))


def _tables_of_windows(tables: Tensor, first_block: Tensor, window: int, block_size: int) -> tuple[Tensor, Tensor]:
    """The columns of [seqs, blocks] `tables` that hold each sequence's window, and the first one's number [seqs]."""
    width = min(tables.shape[1], (window + block_size - 2) // block_size + 1)
    first_block = first_block.clamp(max=tables.shape[1] - width)
    columns = first_block[:, None] + torch.arange(width, device=tables.device)
    return tables.gather(1, columns.long()), first_block


def _prefill(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    part: PrefillSlice,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """[new tokens, heads, head_dim] of one sequence, and the same back."""
    _, kv_heads, _, _, block_size, head_dim = pool.shape
    rows, mask, context, start = part.rows, part.mask, part.context, part.context - part.num_tokens
    if window is not None and window < context:
        skipped = max(0, start - window + 1) // block_size  # blocks before the first new token's window
        rows, context = rows[..., skipped:], context - skipped * block_size
        mask = _window_mask(part, skipped * block_size, window)
    gathered = pool.view(-1, block_size * head_dim).index_select(0, (rows + 2 * layer).flatten())
    keys, values = gathered.view(2, kv_heads, -1, head_dim)[:, :, :context]
    if mask is None and softcap is not None:
        mask = _window_mask(part, 0, part.context)
    attended = _attend(queries.transpose(0, 1)[None], keys[None], values[None], mask, scale, softcap)
    return attended[0].transpose(0, 1)


def _window_mask(part: PrefillSlice, first_key: int, window: int) -> Tensor:
    """[new tokens, keys from `first_key` on] True where attended."""
    device = part.rows.device
    queries = torch.arange(part.context - part.num_tokens, part.context, device=device)[:, None]
    keys = torch.arange(first_key, part.context, device=device)[None, :]
    return (keys <= queries) & (keys > queries - window)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """[seqs, heads, new, head_dim] over keys and values [seqs, kv_heads, all, head_dim]; without `mask`: causal."""
    if softcap is None:
        grouped = queries.shape[1] != keys.shape[1]
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    assert mask is not None
    seqs, kv_heads = keys.shape[:2]
    by_kv_head = queries.reshape(seqs, kv_heads, -1, queries.shape[3])  # [seqs, kv_heads, group * new, head_dim]
    scores = (by_kv_head @ keys.transpose(2, 3)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    masked = scores.view(*queries.shape[:3], -1).masked_fill_(~mask, -torch.inf)
    weights = masked.softmax(dim=-1).to(values.dtype).view(scores.shape)
    return (weights @ values).view(queries.shape)
