"""The KV digest against its definition, and the changes it must see."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_kernels.digest import digest_add, kv_digest, kv_digest_tensor

MASK = 2**64 - 1
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random_pool(
    *,
    blocks: int = 4,
    heads: int = 2,
    layers: int = 3,
    block_size: int = 4,
    dim: int = 8,
    dtype: torch.dtype = DTYPES[0],
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(blocks * 1000 + dim)
    return torch.randn(blocks, heads, layers, 2, block_size, dim, generator=generator).to(dtype)


def paged(tokens: torch.Tensor, block_ids: Sequence[int], block_size: int, first_token: int = 0) -> torch.Tensor:
    """A pool, elsewhere full of noise, in which `block_ids` hold tokens [heads, layers, 2, tokens, dim]."""
    heads, layers, _, num_tokens, dim = tokens.shape
    pool = torch.full((max(block_ids) + 1, heads, layers, 2, block_size, dim), 7.0, dtype=tokens.dtype)
    first_block = first_token // block_size
    for i in range(num_tokens):
        block, slot = divmod(first_token + i, block_size)
        pool[block_ids[block - first_block], :, :, :, slot] = tokens[:, :, :, i]
    return pool


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def code(index: int, salt: int) -> int:
    return mix(index * 0x9E3779B97F4A7C15 + salt & MASK)


def by_definition(pool: torch.Tensor, block_ids: Sequence[int], start: int, count: int, head0: int, layer0: int) -> int:
    """The module docstring's formula on Python integers, one token at a time."""
    _, heads, layers, _, block_size, _ = pool.shape
    total = 0
    for token, head, layer, side in itertools.product(
        range(start, start + count), range(heads), range(layers), range(2)
    ):
        block = block_ids[token // block_size - start // block_size]
        row = pool[block, head, layer, side, token % block_size].clone()
        words = [word & MASK for word in row.view(torch.int64).tolist()]
        factors = [code(j, 0x243F6A8885A308D3) | 1 for j in range(len(words))]
        row_sum = sum((w ^ w >> 32) * c for w, c in zip(words, factors, strict=True))
        place = code((head0 + head << 32) + (layer0 + layer << 1) + side, 0x13198A2E03707344)
        total += mix(row_sum + place + code(token, 0xA4093822299F31D0) & MASK)
    return total & MASK


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("start", "count"), [(0, 12), (4, 5), (6, 1), (5, 6), (8, 0)])
def test_follows_its_definition(dtype: torch.dtype, start: int, count: int) -> None:
    pool = random_pool(dtype=dtype)
    assert kv_digest(pool, [2, 0, 3], start, count, 5, 7) == by_definition(pool, [2, 0, 3], start, count, 5, 7)


def test_large_blocks_follow_the_definition_too() -> None:
    pool = random_pool(blocks=2, heads=1, layers=5, block_size=256, dim=64)  # several parts a block on the CPU path
    assert kv_digest(pool, [1], 250, 6) == by_definition(pool, [1], 250, 6, 0, 0)


def test_the_tensor_holds_the_same_bits() -> None:
    pool = random_pool()
    digest = kv_digest_tensor(pool, [1, 3], 0, 8)
    assert digest.shape == ()
    assert digest.dtype == torch.int64
    assert digest.item() & MASK == kv_digest(pool, [1, 3], 0, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_flip_is_seen(dtype: torch.dtype) -> None:
    dim = 8 // dtype.itemsize
    pool = random_pool(blocks=1, heads=1, layers=2, block_size=3, dim=dim, dtype=dtype)
    seen = {kv_digest(pool, [0], 0, 3)}
    words = pool.view(torch.int64).view(-1)
    for i, bit in itertools.product(range(len(words)), range(64)):
        flip = (1 << bit) - (1 << 64 if bit == 63 else 0)
        words[i] ^= flip
        seen.add(kv_digest(pool, [0], 0, 3))
        words[i] ^= flip
    assert len(seen) == 1 + 64 * len(words)


def test_every_pair_of_sign_flips_within_a_row_is_seen() -> None:
    """The weak spot of sums with odd factors: flips of two top bits cancel, were it not for the fold."""
    pool = random_pool(blocks=1, heads=1, layers=1, block_size=1, dim=128)
    expected = kv_digest(pool, [0], 0, 1)
    for i, j in itertools.combinations(range(128), 2):
        changed = pool.clone()
        changed[..., [i, j]] *= -1
        assert kv_digest(changed, [0], 0, 1) != expected, (i, j)


def test_every_swap_of_two_rows_is_seen() -> None:
    pool = random_pool(blocks=2, block_size=2, dim=4)
    expected = kv_digest(pool, [0, 1], 0, 4)
    rows = pool.view(-1, 4)
    for i, j in itertools.combinations(range(len(rows)), 2):
        rows[[i, j]] = rows[[j, i]]
        assert kv_digest(pool, [0, 1], 0, 4) != expected, (i, j)
        rows[[i, j]] = rows[[j, i]]


def test_rows_exchanged_crosswise_are_seen() -> None:
    """Two tokens exchange a value at one head and exchange it back at another: linear position codes would miss it."""
    pool = torch.zeros(1, 2, 1, 2, 2, 4)
    a, b = torch.arange(8.0).view(2, 4).unbind()
    pool[0, 0, 0, 0, 0], pool[0, 0, 0, 0, 1], pool[0, 1, 0, 0, 0], pool[0, 1, 0, 0, 1] = a, b, b, a
    exchanged = torch.zeros(1, 2, 1, 2, 2, 4)
    exchanged[0, 0, 0, 0, 0], exchanged[0, 0, 0, 0, 1], exchanged[0, 1, 0, 0, 0], exchanged[0, 1, 0, 0, 1] = b, a, a, b
    assert kv_digest(pool, [0], 0, 2) != kv_digest(exchanged, [0], 0, 2)


@pytest.mark.parametrize("axis", [1, 2, 3, 4, 5])
def test_a_shift_along_any_axis_is_seen(axis: int) -> None:
    pool = random_pool()
    assert kv_digest(pool.roll(1, axis), [0, 1], 0, 8) != kv_digest(pool, [0, 1], 0, 8)


def test_position_counts_where_values_are_equal() -> None:
    """Poison and zeros look alike everywhere, and still have a digest of their own at each place."""
    pool = torch.zeros(2, 1, 1, 2, 4, 4)
    digests = {kv_digest(pool, [0, 1], start, count) for start in (0, 4, 8) for count in (1, 2, 3, 4, 5)}
    digests |= {kv_digest(pool, [0], 0, 4, head, layer) for head in range(3) for layer in range(3)}
    assert len(digests) == 15 + 9 - 1  # head 0, layer 0, tokens 0 to 3 is in both


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_token_ranges_add_up(data: st.DataObject) -> None:
    pool = random_pool()
    first_block = data.draw(st.integers(0, 3))
    start = first_block * 4 + data.draw(st.integers(0, 3))
    end = data.draw(st.integers(start, first_block * 4 + 16))
    middle = data.draw(st.integers(start, end))
    ids = data.draw(st.permutations(range(4)))
    front = kv_digest(pool, ids, start, middle - start)
    back = kv_digest(pool, ids[middle // 4 - first_block :], middle, end - middle)
    assert digest_add(front, back) == kv_digest(pool, ids, start, end - start)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_of_heads_and_layers_add_up(dtype: torch.dtype) -> None:
    pool = random_pool(heads=4, layers=6, dtype=dtype)
    total = 0
    for head, layer in itertools.product((0, 2), (0, 3)):
        shard = pool[:, head : head + 2, layer : layer + 3]
        for view in (shard, shard.contiguous()):
            assert kv_digest(view, [3, 1], 0, 7, head, layer) == kv_digest(shard, [3, 1], 0, 7, head, layer)
        total = digest_add(total, kv_digest(shard, [3, 1], 0, 7, head, layer))
    assert total == kv_digest(pool, [3, 1], 0, 7)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_block_size_and_block_ids_do_not_matter(data: st.DataObject) -> None:
    num_tokens = data.draw(st.integers(1, 33))
    tokens = torch.randn(2, 2, 2, num_tokens, 4, generator=torch.Generator().manual_seed(num_tokens))
    first_token = data.draw(st.integers(0, 40))
    digests = set()
    for block_size in (1, 4, 16, 32):
        num_blocks = (first_token + num_tokens - 1) // block_size - first_token // block_size + 1
        ids = data.draw(st.permutations(range(num_blocks + 2)))[:num_blocks]
        digests.add(kv_digest(paged(tokens, ids, block_size, first_token), ids, first_token, num_tokens))
    assert len(digests) == 1


def test_tokens_outside_the_range_do_not_count() -> None:
    pool = random_pool()
    expected = kv_digest(pool, [2, 1], 5, 2)
    pool[2, :, :, :, 0] = 9.0  # token 4
    pool[2, :, :, :, 3] = float("nan")  # token 7
    pool[[0, 1, 3]] = 1.0
    assert kv_digest(pool, [2, 1], 5, 2) == expected


def test_dtypes_have_digests_of_their_own() -> None:
    pool = torch.ones(1, 1, 1, 2, 4, 8)
    assert len({kv_digest(pool.to(dtype), [0], 0, 4) for dtype in DTYPES}) == 3


def test_addition_wraps_around() -> None:
    assert digest_add(MASK, 1) == 0
    assert digest_add(2**63, 2**63 + 5) == 5


@pytest.mark.parametrize(
    ("ids", "start", "count", "message"),
    [
        ([0], 0, 5, "got 1 block ids, expected 2 to cover tokens 0 to 4"),
        ([0], 3, 2, "got 1 block ids, expected 2 to cover tokens 3 to 4"),
        ([4], 0, 1, r"got block ids \[4\], expected each in 0 to 3"),
        ([-1], 0, 1, r"got block ids \[-1\], expected each in 0 to 3"),
        ([0], -1, 1, "got start_token -1"),
        ([0], 0, -1, "num_tokens -1"),
    ],
)
def test_refuses_ranges_that_the_blocks_do_not_cover(ids: list[int], start: int, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_digest(random_pool(), ids, start, count)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (torch.zeros(2, 2, 2, 2, 4), "got shape"),
        (torch.zeros(2, 2, 2, 3, 4, 4), "got shape"),
        (torch.zeros(2, 2, 2, 2, 4, 4, dtype=torch.float64), "got dtype torch.float64"),
        (torch.zeros(2, 2, 2, 2, 4, 2, dtype=torch.bfloat16), "got 4 bytes a row, expected a multiple of 8"),
    ],
)
def test_refuses_pools_it_cannot_read(pool: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_digest(pool, [0], 0, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_and_cpu_agree(dtype: torch.dtype) -> None:
    pool = random_pool(blocks=40, heads=4, layers=8, block_size=16, dim=128, dtype=dtype)
    ids = torch.randperm(40).tolist()
    assert kv_digest(pool.cuda(), ids, 16, 600) == kv_digest(pool, ids, 16, 600)
