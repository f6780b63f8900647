"""The 64-bit digest of KV blocks, over the raw bits and the logical position of every value.

A row is what one (layer, head, key or value, token) holds: `head_dim` values, seen as 64-bit words w_0, w_1, ...

    row    = sum over j of fold(w_j) * c_j             fold(w) = w ^ (w >>> 32), every c_j odd
    digest = sum over rows of mix(row + place(layer, head, key or value) + time(token))        all modulo 2**64

where mix is the finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) and
c, place and time are pseudorandom codes drawn with it. A sum over rows makes the digest additive over token ranges,
heads and layers, and independent of block ids and block size. fold, an odd factor and mix are bijections, so a change
within one word is always seen; mix is not linear, so swapped, shifted or repeated rows do not cancel as they would in a
plain weighted sum. Other changes escape with a chance of 2**-64, or 2**-33 where only the sign bits within one row
changed: fold is what keeps two flipped top bits, which any odd factors would cancel, from escaping always.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

_MASK = 2**64 - 1
# On a CPU, values to a tensor operation: fewer than torch splits over threads, and small enough for the L2 cache.
# With two busy cores the waits for the second thread cost more than it computed: 0.7 instead of 2.3 GB/s.
_CPU_PART = 2**15 - 1
_GPU_PART_BYTES = 2**26  # bounds the extra memory to a few times this


def kv_digest(
    pool: Tensor,
    block_ids: Sequence[int],
    start_token: int,
    num_tokens: int,
    first_head: int = 0,
    first_layer: int = 0,
) -> int:
    """The digest of the KV of prompt tokens [start_token, start_token + num_tokens); waits for the device.

    Args:
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim], float32, float16 or bfloat16.
        block_ids: block_ids[i] holds logical block start_token // block_size + i; blocks behind the range do not count.
        start_token: position in the prompt of the first token that counts; need not begin a block.
        num_tokens: how many tokens count; tokens outside the range do not, even in the same block.
        first_head: the model's number of the pool's first head, for a tensor-parallel rank.
        first_layer: the model's number of the pool's first layer, for a pipeline stage.

    Returns:
        An integer in [0, 2**64).

    Raises:
        ValueError: the pool's shape or dtype does not fit, or the block ids do not cover the range.
    """
    if pool.is_cuda:
        from baton_kernels.gpu import digest as gpu  # only a GPU's torch comes with triton

        return int(gpu.kv_digest_tensor(pool, block_ids, start_token, num_tokens, first_head, first_layer)) & _MASK
    return int(kv_digest_tensor(pool, block_ids, start_token, num_tokens, first_head, first_layer)) & _MASK


def digest_add(a: int, b: int) -> int:
    """The digest of two disjoint parts (token ranges, heads or layers) taken together."""
    return (a + b) & _MASK


def kv_digest_tensor(
    pool: Tensor,
    block_ids: Sequence[int],
    start_token: int,
    num_tokens: int,
    first_head: int = 0,
    first_layer: int = 0,
) -> Tensor:
    """`kv_digest` as an int64 scalar on the pool's device (the same 64 bits, signed), without waiting for it."""
    words = words_of(pool)  # [num_blocks, heads, layers, 2, block_size, words]
    block_size = pool.shape[4]
    first_block = start_token // block_size
    num_used = -(-(start_token + num_tokens) // block_size) - first_block if num_tokens else 0
    check_range(block_ids, start_token, num_tokens, num_used, pool.shape[0])
    places = _places(first_head, pool.shape[1], first_layer, pool.shape[2], pool.device)
    digest = torch.zeros((), dtype=torch.int64, device=pool.device)
    step = _blocks_at_once(words)
    for begin in range(0, num_used, step):
        ids = block_ids[begin : min(begin + step, num_used)]
        first_token = (first_block + begin) * block_size
        tokens = torch.arange(first_token, first_token + len(ids) * block_size, device=pool.device)
        tokens = tokens.view(len(ids), 1, 1, 1, block_size)
        mixed = _mix(_row_sums(words, ids) + places + _code(tokens, TIME_SALT))
        counted = (tokens >= start_token) & (tokens < start_token + num_tokens)
        digest += (mixed * counted).sum()
    return digest


def words_of(pool: Tensor) -> Tensor:
    """The pool seen as 64-bit words: [num_blocks, kv_heads, layers, 2, block_size, words].

    Raises:
        ValueError: its shape or dtype does not fit.
    """
    if pool.ndim != 6 or pool.shape[3] != 2:
        raise ValueError(
            f"KV pool: got shape {tuple(pool.shape)}, expected [num_blocks, kv_heads, layers, 2, block_size, head_dim]"
        )
    if pool.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"KV pool: got dtype {pool.dtype}, expected float32, float16 or bfloat16")
    if pool.shape[5] * pool.itemsize % 8:
        raise ValueError(f"KV pool: got {pool.shape[5] * pool.itemsize} bytes a row, expected a multiple of 8")
    return pool.view(torch.int64)


def check_range(block_ids: Sequence[int], start_token: int, num_tokens: int, num_used: int, num_blocks: int) -> None:
    """Raises `ValueError` unless the first `num_used` of `block_ids` are blocks of the pool that cover the tokens."""
    if start_token < 0 or num_tokens < 0:
        raise ValueError(f"got start_token {start_token}, num_tokens {num_tokens}, expected neither below 0")
    if len(block_ids) < num_used:
        raise ValueError(
            f"got {len(block_ids)} block ids, expected {num_used} to cover tokens "
            f"{start_token} to {start_token + num_tokens - 1}"
        )
    if num_used and not 0 <= min(block_ids[:num_used]) <= max(block_ids[:num_used]) < num_blocks:
        raise ValueError(f"got block ids {list(block_ids[:num_used])}, expected each in 0 to {num_blocks - 1}")


def _blocks_at_once(words: Tensor) -> int:
    if words.is_cpu:
        return max(1, _CPU_PART // words[0, ..., 0].numel())
    return max(1, _GPU_PART_BYTES // (words[0].numel() * 8))


def _row_sums(words: Tensor, block_ids: Sequence[int]) -> Tensor:
    """The inner sum of the definition for every row of the blocks: all that touches the bulk of the bytes."""
    rows = torch.empty((len(block_ids), *words.shape[1:5]), dtype=torch.int64, device=words.device)
    odd = factors(words.shape[5], words.device)
    for part, sums in _parts(words, block_ids, rows):
        folded = _shift_right(part, 32).bitwise_xor_(part).mul_(odd)
        torch.sum(folded, -1, out=sums)
    return rows


def _parts(words: Tensor, block_ids: Sequence[int], rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The blocks' words piece by piece, each with the rows that take its sums."""
    if not words.is_cpu:
        ids = torch.tensor(block_ids, pin_memory=words.is_cuda).to(words.device, non_blocking=True)
        yield words.index_select(0, ids), rows
        return
    num_heads, num_layers = words.shape[1:3]
    step = max(1, _CPU_PART // words[0, 0, 0].numel())
    for row, block in enumerate(block_ids):
        for head in range(num_heads):
            for layer in range(0, num_layers, step):
                yield words[block, head, layer : layer + step], rows[row, head, layer : layer + step]


def _signed(value: int) -> int:
    """The int64 of the same 64 bits: torch's integers are signed, and wrap around."""
    return (value ^ 1 << 63) - (1 << 63)


# Steps of splitmix64; the salts keep the three families of codes apart and are the first digits of pi.
GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)
FACTOR_SALT = _signed(0x243F6A8885A308D3)
PLACE_SALT = _signed(0x13198A2E03707344)
TIME_SALT = _signed(0xA4093822299F31D0)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical shift: torch's own copies the sign into the vacated bits, which would make xor-shifts lose it."""
    return (z >> bits).bitwise_and_((1 << 64 - bits) - 1)


def _mix(z: Tensor) -> Tensor:
    z = _shift_right(z, 30).bitwise_xor_(z).mul_(MIX_1)
    z = _shift_right(z, 27).bitwise_xor_(z).mul_(MIX_2)
    return _shift_right(z, 31).bitwise_xor_(z)


def _code(index: Tensor, salt: int) -> Tensor:
    return _mix(index * GOLDEN + salt)


# Codes are made on the CPU and copied with a wait, so that a cached one is ready for whichever CUDA stream comes next.


@lru_cache(maxsize=32)
def factors(num_words: int, device: torch.device) -> Tensor:
    """c of the definition: [words] int64."""
    return (_code(torch.arange(num_words), FACTOR_SALT) | 1).to(device)


@lru_cache(maxsize=32)
def _places(first_head: int, num_heads: int, first_layer: int, num_layers: int, device: torch.device) -> Tensor:
    """place of the definition: [heads, layers, 2, 1]."""
    heads = torch.arange(first_head, first_head + num_heads).view(-1, 1, 1, 1)
    layers = torch.arange(first_layer, first_layer + num_layers).view(-1, 1, 1)
    sides = torch.arange(2).view(2, 1)  # key, value
    return _code((heads << 32) + (layers << 1) + sides, PLACE_SALT).to(device)
