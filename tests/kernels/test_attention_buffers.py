"""Batches for captured graphs: same addresses, whatever is in them; padded rows write nothing and attend to nothing."""

import numpy as np
import pytest
import torch

from baton_kernels.attention import SequenceSlice
from baton_kernels.attn.base import FlatBatch
from baton_kernels.attn.paged_triton import Limits, TritonAttention
from baton_kernels.gpu.attention_configs import AttentionConfigs
from baton_kernels.gpu.attention_decode import DecodeConfig
from baton_kernels.gpu.attention_prefill import PrefillConfig
from baton_kernels.layers import rope_table
from tests.fakes.attention_cases import BOUNDS, LAYER, NAN, Shape, attend, make_case

SHAPE = Shape(2, 2, 32, 8)
CONFIGS = AttentionConfigs(DecodeConfig(16, 4, 2, 64, 1), PrefillConfig(16, 16, 4, 2), 1000)


def make_backend(pool: torch.Tensor) -> TritonAttention:
    return TritonAttention(pool, 4, Limits(64, 8, 128), CONFIGS)


def addresses(batch: FlatBatch) -> list[int]:
    return [x.data_ptr() for x in (batch.positions, batch.slots, batch.tables, *batch.decodes)]


def test_padded_decodes(kernel_device: torch.device) -> None:
    case = make_case([(37, 1), (0, 1), (63, 1)], SHAPE, kernel_device)
    backend, padded = make_backend(case.pool), 8
    tables = np.zeros((5, 16), np.int32)
    for row, seq in zip(tables, case.slices, strict=False):
        row[: len(seq.block_ids)] = seq.block_ids
    contexts = np.array([38, 1, 64], np.int32)
    batch = backend.plan_decodes(tables, contexts, padded)
    assert batch.positions.tolist() == [37, 0, 63, 0, 0, 0, 0, 0]
    qkv = torch.full((padded, 8, 32), NAN, device=kernel_device)
    qkv[:3] = case.qkv
    cos, sin = (part[batch.positions.long()] for part in rope_table(128, 32, 10000.0, kernel_device))
    before = case.pool.clone()
    rotated = backend.rotate_and_write(qkv, cos, sin, case.pool, LAYER, batch, 4)
    out = backend.attend(rotated, case.pool, LAYER, batch, 0.2)
    assert (out[3:] == 0).all()
    for row, (seq, earlier) in enumerate(zip(case.slices, case.earlier, strict=True)):
        keys, values = (
            torch.cat((old.double(), new[row : row + 1].double().cpu()))
            for old, new in zip(earlier, (rotated.keys, rotated.values), strict=True)
        )
        expected = attend(rotated.queries[row : row + 1], keys, values, 0.2, None, None)
        assert (out[row].double().cpu() - expected[0]).norm() / expected.norm() < BOUNDS[torch.float32]
        place = (seq.block_ids[seq.start // 8], slice(None), LAYER, slice(None), seq.start % 8)
        before[place] = case.pool[place]
    assert torch.equal(before.nan_to_num(7.0), case.pool.nan_to_num(7.0))


def test_padded_chunks(kernel_device: torch.device) -> None:
    """As unpadded ones, to the last bit; and the same addresses for another batch."""
    case = make_case([(20, 9), (0, 17), (7, 2)], SHAPE, kernel_device)
    backend, tokens = make_backend(case.pool), 40
    cos, sin = rope_table(128, 32, 10000.0, kernel_device)
    pool, padded_pool = case.pool, case.pool.clone()
    plain = backend.plan(case.slices)
    expected = _attended(backend, plain, case.qkv.clone(), cos, sin, pool)
    batch = backend.plan_chunks(case.slices, tokens, 5)
    assert batch.slots[28:].tolist() == [-1] * 12
    qkv = torch.full((tokens, 8, 32), NAN, device=kernel_device)
    qkv[:28] = case.qkv
    assert torch.equal(_attended(backend, batch, qkv, cos, sin, padded_pool)[:28], expected)
    assert torch.equal(pool.nan_to_num(7.0), padded_pool.nan_to_num(7.0))
    parts = (batch.positions, batch.slots, batch.tables, *batch.chunks, batch.tile_seqs, batch.tile_tokens)
    seen = [(x.data_ptr(), x.shape) for x in parts]
    batch = backend.plan_chunks(case.slices[1:2], tokens, 5)
    parts = (batch.positions, batch.slots, batch.tables, *batch.chunks, batch.tile_seqs, batch.tile_tokens)
    assert [(x.data_ptr(), x.shape) for x in parts] == seen
    with pytest.raises(ValueError, match="got 3 sequences to pad, expected fewer than 3"):
        backend.plan_chunks(case.slices, tokens, 3)


def _attended(
    backend: TritonAttention,
    batch: FlatBatch,
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pool: torch.Tensor,
) -> torch.Tensor:
    at = batch.positions.long()
    rotated = backend.rotate_and_write(qkv, cos[at], sin[at], pool, LAYER, batch, 4)
    return backend.attend(rotated, pool, LAYER, batch, 0.2)


def test_a_padded_size_keeps_its_addresses(kernel_device: torch.device) -> None:
    backend = make_backend(torch.zeros(64, 2, 1, 2, 8, 32, device=kernel_device))
    tables = np.arange(64, dtype=np.int32).reshape(4, 16)
    first = backend.plan_decodes(tables, np.array([3, 90], np.int32), 4)
    seen = addresses(first)
    backend.plan([SequenceSlice(0, 50, list(range(7))), SequenceSlice(5, 1, [9])])
    second = backend.plan_decodes(tables, np.array([1, 128, 17, 8], np.int32), 4)
    assert addresses(second) == seen
    assert first.decodes.contexts.tolist() == [1, 128, 17, 8]  # what a graph captured over the first batch now reads
    assert second.slots.tolist() == [0 * 8 + 0, 31 * 8 + 7, 34 * 8 + 0, 48 * 8 + 7]


@pytest.mark.gpu
def test_a_captured_graph_serves_later_batches() -> None:
    pool = torch.randn(64, 2, 1, 2, 8, 32, device="cuda")
    queries = torch.randn(4, 4, 32, device="cuda")
    backend, tables = make_backend(pool), np.arange(64, dtype=np.int32).reshape(4, 16)
    first = backend.plan_decodes(tables, np.array([3, 90], np.int32), 4)
    backend.attend(queries, pool, 0, first, 0.2)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.attend(queries, pool, 0, first, 0.2)
    for contexts in ([1, 128, 17, 8], [64]):
        later = backend.plan_decodes(tables, np.array(contexts, np.int32), 4)
        graph.replay()
        assert torch.equal(out, backend.attend(queries, pool, 0, later, 0.2))
        assert (out[: len(contexts)] != 0).all()


def test_both_plans_agree(kernel_device: torch.device) -> None:
    backend = make_backend(torch.zeros(64, 2, 1, 2, 8, 32, device=kernel_device))
    tables = np.random.default_rng(0).permutation(64).astype(np.int32).reshape(4, 16)
    contexts = np.array([1, 30, 8, 128], np.int32)
    fast = [x.clone() for x in _tensors(backend.plan_decodes(tables, contexts, 4), 25)]
    slices = [SequenceSlice(int(n) - 1, 1, row.tolist()) for n, row in zip(contexts, tables, strict=True)]
    for one, other in zip(fast, _tensors(backend.plan(slices), 25), strict=True):
        assert torch.equal(one, other)


def _tensors(batch: FlatBatch, entries: int) -> list[torch.Tensor]:
    return [batch.positions, batch.slots, batch.tables[:entries], *batch.decodes]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([SequenceSlice(0, 65, list(range(9)))], "got a batch with 65 positions, expected at most 64"),
        ([SequenceSlice(0, 1, [0])] * 9, "got a batch with 9 firsts, expected at most 8"),
    ],
)
def test_refuses_what_does_not_fit(sequences: list[SequenceSlice], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_backend(torch.zeros(16, 2, 1, 2, 8, 32)).plan(sequences)
