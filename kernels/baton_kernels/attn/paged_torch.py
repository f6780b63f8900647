"""Attention by torch operators, and on a CPU by compiled kernels where they were built: what the others must equal."""

from collections.abc import Sequence

from torch import Tensor

from baton_kernels import attention
from baton_kernels.attn.base import AttentionBackend, HeadNorm, Rotated


class TorchAttention(AttentionBackend):
    """The functions of `baton_kernels.attention` over one pool, of any device and dtype that torch has."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool

    def plan(self, sequences: Sequence[attention.SequenceSlice]) -> attention.TorchBatch:
        return attention.plan_batch(sequences, self._pool)

    def rotate_and_write(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        pool: Tensor,
        layer: int,
        batch: attention.PagedBatch,
        heads: int,
        norm: HeadNorm | None = None,
    ) -> Tensor | Rotated:
        return attention.rotate_and_write(qkv, cos, sin, pool, layer, batch, heads, norm)

    def attend(
        self,
        queries: Tensor | Rotated,
        pool: Tensor,
        layer: int,
        batch: attention.PagedBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        return attention.paged_attention(queries, pool, layer, batch, scale, window, softcap)
