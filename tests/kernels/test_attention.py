"""Paged attention equals attention over each sequence's own, contiguous keys and values, in float64."""

import random

import pytest
import torch

from baton_kernels import native
from baton_kernels.attention import SequenceSlice, paged_attention, plan_batch, write_kv

HEADS, KV_HEADS, LAYERS, DIM = 6, 2, 3, 16
UNLIMITED = 1 << 20
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def reference(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of a sequence's last tokens; queries [new, heads, dim], keys and values [all, kv, dim]."""
    q, k, v = (x.double() for x in (queries, keys, values))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    new, total = q.shape[0], k.shape[0]
    age = torch.arange(total - new, total)[:, None] - torch.arange(total)[None, :]
    visible = (age >= 0) & (age < (window or UNLIMITED))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)


def check_mixed_batch(
    dtype: torch.dtype, block_size: int, seed: int, window: int | None = None, softcap: float | None = None
) -> None:
    """Prefills and decodes of random lengths, over blocks in random order."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rng.choice([0, 0, rng.randint(1, 300)]), rng.choice([1, 1, 1, rng.randint(2, 90)])) for _ in range(7)]
    num_blocks = sum(-(-(start + new) // block_size) for start, new in shapes) + 5
    free = rng.sample(range(num_blocks), num_blocks)
    pool = torch.zeros(num_blocks, KV_HEADS, LAYERS, 2, block_size, DIM, dtype=dtype)
    slices, kv = [], []
    for start, new in shapes:
        blocks = [free.pop() for _ in range(-(-(start + new) // block_size))]
        slices.append(SequenceSlice(start, new, blocks))
        kv.append(torch.randn(2, start + new, KV_HEADS, DIM, generator=generator).to(dtype))
        if start:  # what earlier steps have left there
            write_kv(pool, 1, plan_batch([SequenceSlice(0, start, blocks)], pool), kv[-1][:, :start])
    batch = plan_batch(slices, pool)
    write_kv(pool, 1, batch, torch.cat([x[:, s.start :] for x, s in zip(kv, slices, strict=True)], dim=1))
    queries = torch.randn(sum(new for _, new in shapes), HEADS, DIM, generator=generator).to(dtype)
    scale = 0.6  # larger than usual, so that soft-capping matters
    out = paged_attention(queries, pool, 1, batch, scale, window, softcap)
    parts = zip(out.split([new for _, new in shapes]), queries.split([new for _, new in shapes]), kv, strict=True)
    for got, q, (keys, values) in parts:
        expected = reference(q, keys, values, scale, window, softcap)
        error = (got.double() - expected).norm() / expected.norm()
        assert error < TOLERANCE[dtype]
    assert pool[:, :, [0, 2]].abs().max() == 0  # other layers are untouched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size", [8, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_mixed_batches_against_float64(dtype: torch.dtype, block_size: int, seed: int) -> None:
    check_mixed_batch(dtype, block_size, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 8, 17, 100, 1000])
@pytest.mark.parametrize("seed", range(2))
def test_sliding_windows(dtype: torch.dtype, window: int, seed: int) -> None:
    check_mixed_batch(dtype, 8, seed, window)


@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("seed", range(2))
def test_soft_capped_scores(window: int | None, seed: int) -> None:
    check_mixed_batch(torch.float32, 16, seed, window, softcap=3.0)


def test_writes_only_the_slots_of_the_new_tokens() -> None:
    pool = torch.full((4, KV_HEADS, LAYERS, 2, 8, DIM), 9.0)
    write_kv(pool, 2, plan_batch([SequenceSlice(7, 2, [3, 1])], pool), torch.ones(2, 2, KV_HEADS, DIM))
    changed = (pool != 9.0).nonzero()
    assert {(b, layer, slot) for b, _, layer, _, slot, _ in changed.tolist()} == {(3, 2, 7), (1, 2, 0)}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("junk", [1e4, torch.nan, torch.inf])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (6, None), (6, 2.0)])
def test_nothing_beyond_the_context_is_attended_to(
    junk: float, compiled: bool, window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "usable", lambda tensor: False)
    pool = torch.randn(4, KV_HEADS, LAYERS, 2, 8, DIM)
    slices = [SequenceSlice(4, 1, [1]), SequenceSlice(11, 1, [3, 2])]
    batch = plan_batch(slices, pool)
    queries = torch.randn(2, HEADS, DIM)
    before = paged_attention(queries, pool, 0, batch, 1.0, window, softcap)
    pool[0] = junk  # nobody's, but what shorter tables are padded with
    pool[1, :, :, :, 5:] = junk
    pool[2, :, :, :, 4:] = junk
    if window:  # the second sequence's window begins at position 6
        pool[3, :, :, :, :6] = junk
    assert torch.equal(before, paged_attention(queries, pool, 0, batch, 1.0, window, softcap))
