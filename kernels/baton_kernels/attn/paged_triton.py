"""Attention on a GPU: Triton over the pages, and torch's dense kernels for long prompts that nothing stands before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from baton_kernels.attn import whole_prompt
from baton_kernels.attn.base import AttentionBackend, FlatBatch, HeadNorm, Rotated
from baton_kernels.attn.buffers import BatchBuffers
from baton_kernels.attn.flat_plan import Ints
from baton_kernels.gpu import attention_decode, attention_prefill, attention_write
from baton_kernels.gpu.attention_configs import AttentionConfigs

if TYPE_CHECKING:
    from baton_kernels.attention import PagedBatch, SequenceSlice


class Limits(NamedTuple):
    """The largest step a backend is made for."""

    max_tokens: int
    max_seqs: int
    max_context: int  # tokens of one sequence


class TritonAttention(AttentionBackend):
    """`rotate_and_write` and `attend` are graph-safe for batches of decodes or of chunks alone; what plans them is not.

    Both allocate what they return, which under capture comes from the graph's own memory.
    """

    def __init__(self, pool: Tensor, heads: int, limits: Limits, configs: AttentionConfigs) -> None:
        """Allocates the batch's buffers and the scratch space.

        Raises:
            ValueError: query heads that no whole number shares a KV head, or more of them than a tile has rows.
        """
        _, kv_heads, _, _, block_size, head_dim = pool.shape
        if heads % kv_heads or heads // kv_heads > configs.prefill.tile_rows:
            raise ValueError(
                f"got {heads} heads and {kv_heads} KV heads, expected a multiple, of at most "
                f"{configs.prefill.tile_rows} (the prefill tile's rows)"
            )
        self._configs, self._kv_heads, self._limits = configs, kv_heads, limits
        dense = whole_prompt.serves(pool.dtype, head_dim)
        self._prompt_tokens = configs.prompt_tokens if dense else limits.max_tokens + 1
        self.buffers = BatchBuffers(
            limits.max_tokens,
            limits.max_seqs,
            -(-limits.max_context // block_size),
            block_size,
            attention_prefill.tokens_per_tile(configs.prefill, heads // kv_heads),
            self._prompt_tokens,
            pool.device,
        )
        # seqs * splits is at most the one or the other, see num_splits.
        most = max(limits.max_seqs, configs.most_programs // kv_heads)
        self._scratch = attention_decode.make_scratch(most, heads, head_dim, 1, pool.device)

    def warm_up(self, pool: Tensor, heads: int, scale: float) -> None:
        """Runs dense attention once at each length that it is used with, so that no request waits for its planning."""
        most, kv_heads, head_dim = self._limits.max_tokens, self._kv_heads, pool.shape[-1]
        if self._prompt_tokens > most:
            return
        for tokens in whole_prompt.lengths_up_to(most, self._prompt_tokens):
            qkv = torch.zeros(tokens, heads + 2 * kv_heads, head_dim, dtype=pool.dtype, device=pool.device)
            whole_prompt.prompt_attention(_split(qkv, heads, kv_heads), scale)

    def plan(self, sequences: "Sequence[SequenceSlice]") -> FlatBatch:
        return self.buffers.fill(self, sequences)

    def plan_decodes(self, tables: Ints, contexts: Ints, padded: int) -> FlatBatch:
        """A batch of decodes for a graph's replay, as `BatchBuffers.fill_decodes`."""
        return self.buffers.fill_decodes(self, tables, contexts, padded)

    def plan_chunks(self, sequences: "Sequence[SequenceSlice]", tokens: int, seqs: int) -> FlatBatch:
        """A batch of chunks for a graph's replay, as `BatchBuffers.fill_chunks`."""
        return self.buffers.fill_chunks(self, sequences, tokens, seqs)

    def rotate_and_write(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        pool: Tensor,
        layer: int,
        batch: "PagedBatch",
        heads: int,
        norm: HeadNorm | None = None,
    ) -> Rotated:
        assert isinstance(batch, FlatBatch)
        attention_write.rotate_and_write(qkv, cos, sin, pool, layer, batch.slots, heads, norm, in_place=True)
        return _split(qkv, heads, self._kv_heads)

    def attend(
        self,
        queries: Tensor | Rotated,
        pool: Tensor,
        layer: int,
        batch: "PagedBatch",
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        assert isinstance(batch, FlatBatch)
        new = queries if isinstance(queries, Rotated) else None
        q = new.queries if new else queries
        assert isinstance(q, Tensor)
        dense = new is not None and softcap is None and _unwindowed(batch, window)
        if dense and len(batch.prompts) == 1 and batch.prompts[0].num_tokens == q.shape[0]:
            assert new is not None
            return whole_prompt.prompt_attention(new, scale)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._decode(q, pool, layer, batch, scale, out, window, softcap)
        tiles = batch.num_chunk_tiles if dense else len(batch.tile_seqs)
        if tiles:
            attention_prefill.paged_prefill(
                q,
                pool,
                layer,
                batch.chunks,
                batch.tables,
                batch.tile_seqs[:tiles],
                batch.tile_tokens[:tiles],
                scale,
                out,
                self._configs.prefill,
                window,
                softcap,
            )
        if dense:
            assert new is not None
            for first, count in batch.prompts:
                span = slice(first, first + count)
                out[span] = whole_prompt.prompt_attention(Rotated(*(x[span] for x in new)), scale)
        return out

    def _decode(
        self,
        queries: Tensor,
        pool: Tensor,
        layer: int,
        batch: FlatBatch,
        scale: float,
        out: Tensor,
        window: int | None,
        softcap: float | None,
    ) -> None:
        group = batch.decodes
        config = self._configs.decode_for(len(group.firsts))
        attention_decode.paged_decode(
            queries,
            pool,
            layer,
            group.firsts,
            batch.tables,
            group.table_starts,
            group.contexts,
            scale,
            out,
            config,
            attention_decode.num_splits(len(group.firsts), self._kv_heads, self._limits.max_context, config),
            self._scratch,
            window,
            softcap,
        )


def _split(qkv: Tensor, heads: int, kv_heads: int) -> Rotated:
    return Rotated(qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :])


def _unwindowed(batch: FlatBatch, window: int | None) -> bool:
    """Whether there are prompts for the dense kernels, none longer than the window."""
    longest = max((prompt.num_tokens for prompt in batch.prompts), default=0)
    return longest > 0 and (window is None or longest <= window)
