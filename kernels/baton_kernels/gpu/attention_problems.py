"""Attention at given sizes over a random pool, for measuring: many layers, so that nothing is still in the L2 cache."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from baton_kernels.attn import whole_prompt
from baton_kernels.attn.base import Rotated, SequenceTensors
from baton_kernels.attn.flat_plan import plan_sequences
from baton_kernels.gpu import attention_decode, attention_prefill
from baton_kernels.gpu.attention_decode import DecodeConfig
from baton_kernels.gpu.attention_prefill import PrefillConfig

_MEMORY_SHARE = 0.4  # of what is free, for the pool


class ModelShape(NamedTuple):
    """What attention depends on in a model."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16

    def kv_bytes(self, tokens: int) -> int:
        """Of one layer."""
        return tokens * self.kv_heads * self.head_dim * 2 * self.dtype.itemsize

    def causal_flops(self, before: int, new: int) -> float:
        """Of one layer's scores and weighted sums, for `new` tokens behind `before` others."""
        return 4.0 * self.heads * self.head_dim * (new * before + new * (new + 1) / 2)


def random_pool(shape: ModelShape, tokens: int) -> Tensor:
    """A pool on the current GPU for `tokens` tokens, of as many of the model's layers as memory allows."""
    blocks = -(-tokens // shape.block_size) + 1
    free, _ = torch.cuda.mem_get_info()
    layers = min(shape.layers, int(free * _MEMORY_SHARE) // (blocks * shape.kv_bytes(shape.block_size)))
    if layers < 1:
        raise ValueError(f"got {free >> 20} MiB of free GPU memory, expected enough for the KV of {tokens} tokens")
    pool_shape = (blocks, shape.kv_heads, layers, 2, shape.block_size, shape.head_dim)
    return torch.empty(pool_shape, dtype=shape.dtype, device="cuda").normal_()


def decode_work(pool: Tensor, shape: ModelShape, seqs: int, context: int, config: DecodeConfig) -> Callable[[], None]:
    """Decode attention of all layers of the pool; graph-safe."""
    width = -(-context // shape.block_size)
    tables = _blocks(pool, seqs * width)
    rows = torch.arange(seqs, dtype=torch.int32, device="cuda")
    contexts = torch.full_like(rows, context)
    queries = torch.randn(seqs, shape.heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    out = torch.empty_like(queries)
    splits = attention_decode.num_splits(seqs, shape.kv_heads, context, config)
    scratch = attention_decode.make_scratch(seqs, shape.heads, shape.head_dim, splits, pool.device)
    scale = shape.head_dim**-0.5

    def work() -> None:
        for layer in range(pool.shape[2]):
            attention_decode.paged_decode(
                queries, pool, layer, rows, tables, rows * width, contexts, scale, out, config, splits, scratch
            )

    return work


def prefill_work(pool: Tensor, shape: ModelShape, before: int, new: int, config: PrefillConfig) -> Callable[[], None]:
    """Attention of one chunk in all layers of the pool, out of its pages; graph-safe."""
    from baton_kernels.attention import SequenceSlice

    blocks = _blocks(pool, -(-(before + new) // shape.block_size))
    tile = attention_prefill.tokens_per_tile(config, shape.heads // shape.kv_heads)
    plan = plan_sequences([SequenceSlice(before, new, blocks.tolist())], shape.block_size, tile, before + new + 1)
    chunks, tile_seqs, tile_tokens = (
        SequenceTensors(*(torch.from_numpy(x).cuda() for x in plan[2:6])),
        torch.from_numpy(plan.tile_seqs).cuda(),
        torch.from_numpy(plan.tile_tokens).cuda(),
    )
    queries = torch.randn(new, shape.heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    out = torch.empty_like(queries)

    def work() -> None:
        for layer in range(pool.shape[2]):
            attention_prefill.paged_prefill(
                queries, pool, layer, chunks, blocks, tile_seqs, tile_tokens, shape.head_dim**-0.5, out, config
            )

    return work


def prompt_work(shape: ModelShape, tokens: int, layers: int) -> Callable[[], None]:
    """Dense attention of a whole prompt, once for each layer; graph-safe."""
    heads, kv_heads = shape.heads, shape.kv_heads
    qkv = torch.randn(tokens, heads + 2 * kv_heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    new = Rotated(qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :])

    def work() -> None:
        for _ in range(layers):
            whole_prompt.prompt_attention(new, shape.head_dim**-0.5)

    return work


def _blocks(pool: Tensor, count: int) -> Tensor:
    """[count] int32 block ids in no order, none twice."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    return torch.randperm(pool.shape[0], generator=generator, device="cuda")[:count].int()
