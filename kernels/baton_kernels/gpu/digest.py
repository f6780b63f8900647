"""The KV digest on a GPU: one pass over the bytes, which can copy the blocks on its way."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.digest import GOLDEN, MIX_1, MIX_2, PLACE_SALT, TIME_SALT, check_range, factors, words_of

_GOLDEN, _MIX_1, _MIX_2 = tl.constexpr(GOLDEN), tl.constexpr(MIX_1), tl.constexpr(MIX_2)
_PLACE_SALT, _TIME_SALT = tl.constexpr(PLACE_SALT), tl.constexpr(TIME_SALT)
_PAIRS = 8  # (layer, key or value) pairs to a program: 32 KiB of bfloat16 at head size 128 and blocks of 16


@triton.jit
def _shift_right(z, bits: tl.constexpr):
    return (z >> bits) & ((1 << (64 - bits)) - 1)


@triton.jit
def _mix(z):
    z = (_shift_right(z, 30) ^ z) * _MIX_1
    z = (_shift_right(z, 27) ^ z) * _MIX_2
    return _shift_right(z, 31) ^ z


@triton.jit
def _digest_kernel(
    pool,
    ids,
    factors,
    out,
    digest,
    num_words,
    block_size,
    num_pairs,
    first_block,
    start_token,
    end_token,
    first_head,
    first_layer,
    stride_block,
    stride_head,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    WORDS: tl.constexpr,
    COPY: tl.constexpr,
):
    index, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    block = tl.load(ids + index)
    slot, word = tl.arange(0, TOKENS), tl.arange(0, WORDS)
    token = ((first_block + index) * block_size + slot).to(tl.int64)
    counted = (slot < block_size) & (token >= start_token) & (token < end_token)
    inside = (slot < block_size)[:, None] & (word < num_words)[None, :]
    where = slot[:, None] * num_words + word[None, :]
    factor = tl.load(factors + word, mask=word < num_words, other=0)
    time = _mix(token * _GOLDEN + _TIME_SALT)
    total = tl.zeros([TOKENS], dtype=tl.int64)
    for step in range(PAIRS):
        pair = part * PAIRS + step
        if pair < num_pairs:
            offset = head.to(tl.int64) * stride_head + pair * (block_size * num_words)
            value = tl.load(pool + block * stride_block + offset + where, mask=inside, other=0)
            if COPY:
                tl.store(out + index.to(tl.int64) * stride_block + offset + where, value, mask=inside)
            row = tl.sum((_shift_right(value, 32) ^ value) * factor[None, :], axis=1)
            place = ((first_head + head).to(tl.int64) << 32) + first_layer * 2 + pair
            total += tl.where(counted, _mix(row + _mix(place * _GOLDEN + _PLACE_SALT) + time), 0)
    tl.atomic_add(digest, tl.sum(total))


def kv_digest_tensor(
    pool: Tensor,
    block_ids: Sequence[int],
    start_token: int,
    num_tokens: int,
    first_head: int = 0,
    first_layer: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """`digest.kv_digest_tensor` on a GPU; the same arguments, result and errors.

    Args:
        out: [blocks, kv_heads, layers, 2, block_size, head_dim] in pool's dtype, contiguous; where given, gets a copy
            of the blocks that the range touches, in order
    """
    words = words_of(pool)  # [num_blocks, heads, layers, 2, block_size, words]
    _, heads, layers, _, block_size, num_words = words.shape
    first_block = start_token // block_size
    num_used = -(-(start_token + num_tokens) // block_size) - first_block if num_tokens else 0
    check_range(block_ids, start_token, num_tokens, num_used, pool.shape[0])
    digest = torch.zeros((), dtype=torch.int64, device=pool.device)
    if not num_used:
        return digest
    ids = torch.tensor(block_ids[:num_used], pin_memory=pool.is_cuda).to(pool.device, non_blocking=True)
    _digest_kernel[(num_used, heads, triton.cdiv(layers * 2, _PAIRS))](
        words,
        ids,
        factors(num_words, pool.device),
        words if out is None else words_of(out),
        digest,
        num_words,
        block_size,
        layers * 2,
        first_block,
        start_token,
        start_token + num_tokens,
        first_head,
        first_layer,
        words.stride(0),
        words.stride(1),
        PAIRS=_PAIRS,
        TOKENS=triton.next_power_of_2(block_size),
        WORDS=triton.next_power_of_2(num_words),
        COPY=out is not None,
        num_warps=4,
    )
    return digest
