"""The attention seam: a backend lays a step's sequences out for a device, writes their KV, and attends to it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from baton_kernels.attention import PagedBatch, SequenceSlice


class HeadNorm(NamedTuple):
    """RMS norm of each query and key head on its own."""

    weight: Tensor  # [heads + kv_heads, head_dim]
    eps: float


class Rotated(NamedTuple):
    """What a layer's new tokens attend with, rotated; queries and the rest may be parts of one tensor."""

    queries: Tensor  # [tokens, heads, head_dim]
    keys: Tensor  # [tokens, kv_heads, head_dim]
    values: Tensor  # [tokens, kv_heads, head_dim]


class SequenceTensors(NamedTuple):
    """Sequences of a batch, as kernels take them: int32, on the device."""

    firsts: Tensor  # [seqs] index of each sequence's first new token in the flattened batch
    lengths: Tensor  # [seqs] new tokens
    contexts: Tensor  # [seqs] tokens attended to, the new ones included; 0 for a padded row
    table_starts: Tensor  # [seqs] index in the batch's tables of each sequence's first block


class Span(NamedTuple):
    """New tokens of one sequence in the flattened batch."""

    first: int
    num_tokens: int


class FlatBatch(NamedTuple):
    """A step's batch as views of persistent device buffers; their addresses depend on the numbers of rows alone.

    So what was captured into a CUDA graph over `decodes` or `chunks` with some padded size serves every later batch
    that `BatchBuffers.fill_decodes` or `fill_chunks` lays out with the same padded size. `prompts` are for steps
    outside of graphs.
    """

    backend: "AttentionBackend"
    positions: Tensor  # [tokens] int32, of each token in its own sequence
    slots: Tensor  # [tokens] int32 block id * block_size + offset; -1 for a padded row
    tables: Tensor  # [entries] int32 block ids of all sequences
    decodes: SequenceTensors  # those with one new token
    chunks: SequenceTensors  # those with more, whole prompts last
    tile_seqs: Tensor  # [tiles] int32 index into `chunks`
    tile_tokens: Tensor  # [tiles] int32 a tile's first token in its sequence's new ones
    num_chunk_tiles: int  # tiles in front that are not of `prompts`
    prompts: tuple[Span, ...]  # long prompts without anything before them, which dense attention serves as well


class AttentionBackend(ABC):
    """How one engine core attends. Made once, for the core's pool; called from the core's one thread.

    `plan` once a step; then, for each layer, `rotate_and_write` and `attend`. A backend that cannot serve the pool or
    the device says so in its constructor.
    """

    @abstractmethod
    def plan(self, sequences: "Sequence[SequenceSlice]") -> "PagedBatch":
        """Lays `sequences` out one behind the other; what it returns is good until the next call."""

    @abstractmethod
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
    ) -> Tensor | Rotated:
        """As `baton_kernels.attention.rotate_and_write`; the result is for `attend` alone."""

    @abstractmethod
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
        """As `baton_kernels.attention.paged_attention`: [tokens, heads, head_dim]."""
