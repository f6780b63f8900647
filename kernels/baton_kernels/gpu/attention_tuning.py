"""Finds the attention kernels' best configurations on this GPU by measuring candidates, one part after the other."""

import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources, PTXASError

from baton_kernels.attn import whole_prompt
from baton_kernels.gpu.attention_configs import AttentionConfigs, default_configs
from baton_kernels.gpu.attention_decode import DecodeConfig
from baton_kernels.gpu.attention_prefill import PrefillConfig
from baton_kernels.gpu.attention_problems import ModelShape, decode_work, prefill_work, prompt_work, random_pool
from baton_kernels.gpu.timing import graph_ms

NEVER = 1 << 30  # tokens; a prompt that long does not exist
Decodes = tuple[tuple[int, int], ...]  # sequences, context
_DECODES: Decodes = ((256, 1200), (128, 1200))
_FEW_DECODES: dict[int, Decodes] = {  # by the most sequences that a configuration is for
    2: ((1, 1200), (1, 8192)),
    16: ((8, 1200), (8, 8192)),
    64: ((32, 1200), (32, 4096)),
}
_CHUNKS = ((0, 2048), (0, 8192), (6144, 2048))  # tokens before, new ones
_PROMPTS = (256, 512, 1024, 2048, 4096, 8192)
_POOL_TOKENS = max(seqs * (context + 128) for seqs, context in (*_DECODES, *_FEW_DECODES[64]))
_ROUND_MS = 8.0  # enough to compare; a benchmark takes longer
Config = TypeVar("Config", DecodeConfig, PrefillConfig)


class Budget(NamedTuple):
    """When to stop trying further candidates."""

    deadline: float  # of time.monotonic()

    def left(self, share: float) -> "Budget":
        """A part of what is left."""
        now = time.monotonic()
        return Budget(now + (self.deadline - now) * share)


def tune(shape: ModelShape, budget: Budget) -> AttentionConfigs:
    """The best of the candidates that were tried in time; what none of them improves stays at the default."""
    start = default_configs(shape.dtype, shape.head_dim, torch.device("cuda"))
    pool = random_pool(shape, _POOL_TOKENS)
    decode = _tune_decode(pool, shape, start.decode, _DECODES, budget.left(0.15))
    few = tuple(
        (most, _tune_decode(pool, shape, start.decode_for(most), decodes, budget.left(0.2)))
        for most, decodes in _FEW_DECODES.items()
    )
    few_layers = pool[:, :, :2]  # arithmetic, not memory, is the limit of prefill
    prefill = _tune_prefill(few_layers, shape, start.prefill, budget)
    prompt_tokens = NEVER
    if whole_prompt.serves(shape.dtype, shape.head_dim):
        prompt_tokens = _tune_prompt_tokens(few_layers, shape, prefill)
    return AttentionConfigs(decode, prefill, prompt_tokens, few)


def decode_candidates(start: DecodeConfig) -> list[DecodeConfig]:
    """Tiles first; how contexts are split is tuned with the best of them."""
    return [
        start._replace(tile_tokens=tile, warps=warps, stages=stages)
        for tile in (64, 32, 128)
        for warps in (4, 2, 8)
        for stages in (3, 5, 2)
        if (tile, warps) not in ((32, 8), (128, 2))
    ]


def prefill_candidates() -> list[PrefillConfig]:
    """Those that neither spill registers for heads of 128 nor need more shared memory than an H100 has."""
    sizes = ((128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2))
    small = ((128, 32, 8, 3), (64, 32, 8, 3), (64, 32, 4, 3))  # for larger heads, and what has less shared memory
    return [PrefillConfig(*size) for size in sizes + small]


def _tune_decode(
    pool: Tensor, shape: ModelShape, start: DecodeConfig, decodes: Decodes, budget: Budget
) -> DecodeConfig:
    def cost(config: DecodeConfig) -> float:
        """Mean of times over the time that reading the KV would take, up to a factor."""
        return sum(
            graph_ms(decode_work(pool, shape, seqs, context, config), _ROUND_MS) / shape.kv_bytes(seqs * context)
            for seqs, context in decodes
        )

    best = _best(cost, start, decode_candidates(start), budget)
    programs = [best._replace(programs=best.programs * factor // 2) for factor in (1, 3, 4, 8)]
    best = _best(cost, best, programs, budget)
    return _best(cost, best, [best._replace(min_tiles=count) for count in (1, 4)], budget)


def _tune_prefill(pool: Tensor, shape: ModelShape, start: PrefillConfig, budget: Budget) -> PrefillConfig:
    def cost(config: PrefillConfig) -> float:
        return sum(
            graph_ms(prefill_work(pool, shape, before, new, config), _ROUND_MS) / shape.causal_flops(before, new)
            for before, new in _CHUNKS
        )

    group = shape.heads // shape.kv_heads
    return _best(cost, start, (config for config in prefill_candidates() if config.tile_rows >= group), budget)


def _tune_prompt_tokens(pool: Tensor, shape: ModelShape, config: PrefillConfig) -> int:
    """From how many tokens on dense kernels are faster, for this and all longer prompts that are measured."""
    least = NEVER
    for tokens in reversed(_PROMPTS):
        paged = graph_ms(prefill_work(pool, shape, 0, tokens, config), _ROUND_MS)
        dense = graph_ms(prompt_work(shape, tokens, pool.shape[2]), _ROUND_MS)
        print(f"prompt of {tokens}: paged {paged:.3f} ms, dense {dense:.3f} ms", file=sys.stderr, flush=True)
        if dense >= paged:
            break
        least = tokens
    return least


def _best(cost: Callable[[Config], float], start: Config, others: Iterable[Config], budget: Budget) -> Config:
    """The cheapest; `start` is always measured, the others while time is left."""
    best, lowest = start, cost(start)
    print(f"{start}: 1.000", file=sys.stderr, flush=True)
    first = lowest
    for config in others:
        if config == start:
            continue
        if time.monotonic() > budget.deadline:
            print("out of time: the other candidates are not tried", file=sys.stderr, flush=True)
            break
        try:
            value = cost(config)
        except (OutOfResources, PTXASError) as error:
            print(f"{config}: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{config}: {value / first:.3f}", file=sys.stderr, flush=True)
        if value < lowest:
            best, lowest = config, value
    return best
