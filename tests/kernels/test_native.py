"""The compiled CPU kernels give what their torch twins give, against float64, on shapes that are not round."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_kernels import attention, layers, native

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def _built() -> None:
    assert native.usable(torch.zeros(1)), "cpu_layers.c was not built: install a C compiler and run `make test` again"


def error(got: Tensor, expected: Tensor) -> float:
    assert not got.isnan().any()
    return float((got.double() - expected).norm() / expected.norm())


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 576), (3, 65), (40, 130), (500, 64)])
def test_rms_norm(dtype: torch.dtype, rows: int, hidden: int) -> None:
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    expected = F.rms_norm(x.double(), (hidden,), weight.double(), 1e-5)
    assert error(layers.rms_norm(x, weight, 1e-5), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim"), [(1, 64), (7, 80), (70, 128)])
def test_rotate_and_write(dtype: torch.dtype, tokens: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, kv_heads, block_size = 6, 2, 8
    pools = [poisoned(12, kv_heads, 3, 2, block_size, dim, dtype=dtype) for _ in range(2)]
    batch = attention.plan_batch([attention.SequenceSlice(3, tokens, list(range(11, -1, -1)))], pools[0])
    table = layers.rope_table(100, dim, 10000.0, torch.device("cpu"))
    cos, sin = (part[3 : 3 + tokens].to(dtype) for part in table)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
    mine = attention.rotate_and_write(qkv.clone(), cos, sin, pools[0], 1, batch, heads)
    monkeypatch.setattr(native, "usable", lambda tensor: False)
    twin = attention.rotate_and_write(qkv.clone(), cos, sin, pools[1], 1, batch, heads)
    assert error(mine, twin.double()) < 2 * TOLERANCE[dtype]
    assert torch.equal(pools[0].isnan(), pools[1].isnan())  # the same places and no others
    assert error(pools[0].nan_to_num(), pools[1].nan_to_num().double()) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_paged_decode(dtype: torch.dtype, dim: int, group: int) -> None:
    kv_heads, block_size = 2, 16
    pool = torch.randn(40, kv_heads, 2, 2, block_size, dim).to(dtype)
    contexts = [1, 16, 17, 200, 33]
    free = itertools.count(39, -1)
    slices = [
        attention.SequenceSlice(context - 1, 1, [next(free) for _ in range(-(-context // block_size))])
        for context in contexts
    ]
    decodes = attention.plan_batch(slices, pool).decodes
    assert decodes is not None
    queries = torch.randn(len(contexts) + 2, kv_heads * group, dim).to(dtype)
    tokens = decodes.tokens + 1  # not the whole batch: the rows around stay as they are
    out, expected = poisoned(*queries.shape, dtype=dtype), poisoned(*queries.shape, dtype=torch.float64)
    native.paged_decode(queries, pool, 1, tokens, decodes.tables, decodes.contexts, dim**-0.5, out)
    attention.paged_decode(
        queries.double(), pool.double(), 1, tokens, decodes.tables, decodes.contexts, dim**-0.5, expected
    )
    assert torch.equal(out.isnan(), expected.isnan())
    assert error(out[1:-1], expected[1:-1]) < TOLERANCE[dtype]


def test_paged_decode_survives_extreme_scores() -> None:
    pool = torch.randn(4, 1, 1, 2, 16, 64)
    pool[0, 0, 0, 0, 3] = 40.0
    queries, out, expected = (
        torch.full((1, 2, 64), 50.0),
        poisoned(1, 2, 64),
        torch.zeros(1, 2, 64, dtype=torch.float64),
    )
    decodes = attention.plan_batch([attention.SequenceSlice(40, 1, [0, 2, 1])], pool).decodes
    assert decodes is not None
    native.paged_decode(queries, pool, 0, *decodes, 1.0, out)
    attention.paged_decode(queries.double(), pool.double(), 0, *decodes, 1.0, expected)
    assert error(out, expected) < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 64])
@pytest.mark.parametrize(("outer", "inner"), [(32, 1), (96, 577)])
def test_linear_and_what_follows(rows: int, outer: int, inner: int) -> None:
    x, weight, other = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(rows, outer)
    y = x.double() @ weight.double().T
    packed = native.pack_linear(weight)
    for follow_up, expected in {
        "nothing": y,
        "silu": F.silu(y),
        "times": y * other.double(),
        "plus": y + other.double(),
    }.items():
        assert error(native.linear(x, packed, follow_up, other), expected) < 2e-6


def test_silu_far_from_zero() -> None:
    x = torch.linspace(-200, 200, 6400).view(-1, 32)
    got = native.linear(x, native.pack_linear(torch.eye(32)), "silu")
    assert torch.allclose(got.double(), F.silu(x.double()), rtol=1e-5, atol=1e-30)
