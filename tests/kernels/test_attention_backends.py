"""Every attention backend against the definition in float64: the same steps, written and attended to."""

import random

import pytest
import torch
from torch import Tensor

from baton_kernels.attention import paged_attention, rotate_and_write
from baton_kernels.attn import whole_prompt
from baton_kernels.attn.base import AttentionBackend, HeadNorm, Rotated
from baton_kernels.attn.paged_torch import TorchAttention
from baton_kernels.attn.paged_triton import Limits, TritonAttention
from baton_kernels.attn.registry import make_attention
from baton_kernels.gpu.attention_configs import AttentionConfigs
from baton_kernels.gpu.attention_decode import DecodeConfig
from baton_kernels.gpu.attention_prefill import PrefillConfig
from baton_kernels.layers import rope_table
from tests.fakes.attention_cases import BOUNDS, LAYER, LAYERS, NAN, Case, Shape, attend, make_case, rotate

# Small enough for the interpreter; decodes are split, prompts from 40 tokens on go the dense way.
CONFIGS = AttentionConfigs(DecodeConfig(16, 4, 2, 64, 1), PrefillConfig(32, 16, 4, 2), 40)
MIXED = [(37, 1), (0, 50), (21, 9), (0, 1), (63, 1), (0, 7)]


def make_backend(name: str, case: Case, heads: int, configs: AttentionConfigs = CONFIGS) -> AttentionBackend:
    if name == "torch":
        return TorchAttention(case.pool)
    return TritonAttention(case.pool, heads, Limits(256, 16, 256), configs)


def run(
    backend: AttentionBackend,
    case: Case,
    shape: Shape,
    window: int | None = None,
    softcap: float | None = None,
    norm: HeadNorm | None = None,
) -> float:
    """The largest error of a step's attention; also looks at what was written, and that nothing else was."""
    heads, device = shape.kv_heads * shape.group, case.pool.device
    positions = [seq.start + offset for seq in case.slices for offset in range(seq.num_tokens)]
    cos, sin = (part[positions].to(shape.dtype) for part in rope_table(512, shape.dim, 10000.0, device))
    plain = case.qkv.double().cpu()
    if norm is not None:
        turned = plain[:, : heads + shape.kv_heads]
        mean_square = turned.square().mean(-1, keepdim=True)
        turned.copy_(turned / (mean_square + norm.eps).sqrt() * norm.weight.double().cpu())
    q, k = rotate(plain, cos, sin)[:, :heads], rotate(plain, cos, sin)[:, heads : heads + shape.kv_heads]
    v, before = plain[:, heads + shape.kv_heads :], case.pool.clone()
    batch = backend.plan(case.slices)
    queries = rotate_and_write(case.qkv.clone(), cos, sin, case.pool, LAYER, batch, heads, norm)
    out = paged_attention(queries, case.pool, LAYER, batch, shape.dim**-0.5, window, softcap)
    assert out.shape == (len(positions), heads, shape.dim)
    assert out.is_contiguous()
    assert not out.isnan().any()
    first, worst = 0, 0.0
    for seq, earlier in zip(case.slices, case.earlier, strict=True):
        span = slice(first, first + seq.num_tokens)
        keys, values = (torch.cat((old.double(), new[span])) for old, new in zip(earlier, (k, v), strict=True))
        expected = attend(q[span], keys, values, shape.dim**-0.5, window, softcap)
        worst = max(worst, float((out[span].double().cpu() - expected).norm() / expected.norm()))
        for position in range(seq.start, seq.start + seq.num_tokens):
            place = (seq.block_ids[position // shape.block_size], slice(None), LAYER, slice(None))
            written = case.pool[place][:, :, position % shape.block_size].double().cpu()
            wanted = torch.stack((keys[position], values[position]), dim=1)
            assert (written - wanted).norm() / wanted.norm() < BOUNDS[shape.dtype]
            before[place][:, :, position % shape.block_size] = case.pool[place][:, :, position % shape.block_size]
        first += seq.num_tokens
    assert torch.equal(before.nan_to_num(7.0), case.pool.nan_to_num(7.0))
    return worst


@pytest.fixture(params=["torch", "triton"])
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


SHAPES = [
    Shape(2, 4, 64, 16, torch.float32),
    Shape(1, 16, 64, 16, torch.bfloat16),
    Shape(3, 3, 80, 8, torch.float16),
    Shape(2, 1, 96, 24, torch.bfloat16),
    Shape(2, 2, 128, 32, torch.bfloat16),
    Shape(1, 5, 128, 16, torch.float16),
    Shape(1, 2, 256, 128, torch.float32),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(backend_name: str, shape: Shape, kernel_device: torch.device) -> None:
    case = make_case([(37, 1), (21, 9), (0, 3), (0, 1)], shape, kernel_device)
    assert run(make_backend(backend_name, case, shape.kv_heads * shape.group), case, shape) < BOUNDS[shape.dtype]


@pytest.mark.parametrize(
    ("window", "softcap", "dtype"),
    [
        (1, None, torch.float32),
        (13, None, torch.bfloat16),
        (40, 0.5, torch.float32),
        (500, None, torch.float32),
        (None, 0.5, torch.bfloat16),
    ],
)
def test_windows_and_soft_caps(
    backend_name: str, window: int | None, softcap: float | None, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    shape = Shape(1, 2, 32, 8, dtype)
    case = make_case(MIXED, shape, kernel_device)
    for seq in case.slices:  # blocks that windows have left behind may be somebody else's by now
        for block in seq.block_ids[: max(0, seq.start - (window or 500) + 1) // shape.block_size]:
            case.pool[block] = NAN
    assert run(make_backend(backend_name, case, 2), case, shape, window, softcap) < BOUNDS[dtype]


@pytest.mark.parametrize("seed", range(3))
def test_random_batches(backend_name: str, seed: int, kernel_device: torch.device) -> None:
    rng = random.Random(seed)
    shape = Shape(rng.choice([1, 3]), rng.choice([1, 2, 7]), rng.choice([16, 48]), rng.choice([8, 16]))
    lengths = [(rng.choice([0, rng.randint(1, 70)]), rng.choice([1, 1, rng.randint(2, 45)])) for _ in range(5)]
    heads = shape.kv_heads * shape.group
    tiles = rng.choice([(16, 32), (64, 16)])
    splits = DecodeConfig(rng.choice([16, 32]), 4, 2, rng.choice([1, 16, 64]), rng.choice([1, 2]))
    configs = AttentionConfigs(splits, PrefillConfig(*tiles, 4, 2), 1000)
    case = make_case(lengths, shape, kernel_device, seed)
    assert run(make_backend(backend_name, case, heads, configs), case, shape) < BOUNDS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_of_heads(backend_name: str, dtype: torch.dtype, kernel_device: torch.device) -> None:
    shape = Shape(2, 2, 80, 16, dtype)
    case = make_case([(0, 4), (5, 1)], shape, kernel_device)
    norm = HeadNorm(torch.rand(6, 80, generator=torch.Generator().manual_seed(1)).to(kernel_device) + 0.5, 1e-5)
    assert run(make_backend(backend_name, case, 4), case, shape, norm=norm) < 2 * BOUNDS[dtype]


def test_pools_with_gaps(kernel_device: torch.device) -> None:
    shape = Shape(2, 2, 64, 8)
    case = make_case(MIXED, shape, kernel_device, strided=True)
    assert not case.pool.is_contiguous()
    assert run(make_backend("triton", case, 4), case, shape) < BOUNDS[torch.float32]


@pytest.mark.parametrize("lengths", [[(0, 130)], [(0, 41), (30, 1), (0, 50), (9, 20)]])
@pytest.mark.parametrize("window", [None, 30])
def test_long_prompts_go_the_dense_way(
    lengths: list[tuple[int, int]], window: int | None, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def recording(new: Rotated, scale: float) -> Tensor:
        taken.append(new.queries.shape[0])
        return whole_prompt_attention(new, scale)

    whole_prompt_attention = whole_prompt.prompt_attention
    monkeypatch.setattr(whole_prompt, "prompt_attention", recording)
    shape = Shape(2, 2, 64, 16, torch.bfloat16)
    case = make_case(lengths, shape, kernel_device)
    assert run(make_backend("triton", case, 4), case, shape, window) < BOUNDS[torch.bfloat16]
    assert taken == ([] if window else [new for start, new in lengths if not start])


def test_padded_lengths_are_few() -> None:
    lengths = {whole_prompt.padded_tokens(tokens) for tokens in range(1000, 32_769)}
    assert len(lengths) <= 43
    assert sorted(lengths) == whole_prompt.lengths_up_to(32_768, 1000)
    assert all(0 <= whole_prompt.padded_tokens(tokens) - tokens <= max(127, tokens / 8) for tokens in range(1, 33_000))


def test_warming_up_runs_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(whole_prompt, "prompt_attention", lambda new, scale: lengths.append(new.queries.shape[0]))
    pool = torch.zeros(2, 1, 1, 2, 8, 16, dtype=torch.bfloat16)
    TritonAttention(pool, 2, Limits(700, 1, 16), CONFIGS).warm_up(pool, 2, 1.0)
    assert lengths == [128, 256, 384, 512, 640, 768]
    assert {whole_prompt.padded_tokens(tokens) for tokens in range(40, 701)} == set(lengths)


def test_backends_by_name() -> None:
    pool = torch.zeros(2, 1, 1, 2, 8, 16)
    assert isinstance(make_attention("auto", pool, 2, 16, 4, 16), TorchAttention)
    assert isinstance(make_attention("triton", pool, 2, 16, 4, 16), TritonAttention)
    with pytest.raises(ValueError, match="got 'flash', expected one of auto, torch, triton"):
        make_attention("flash", pool, 2, 16, 4, 16)
    with pytest.raises(ValueError, match="got 3 heads and 2 KV heads"):
        make_attention("triton", torch.zeros(2, 2, 1, 2, 8, 16), 3, 16, 4, 16)


def test_other_layers_are_untouched(backend_name: str, kernel_device: torch.device) -> None:
    shape = Shape(2, 2, 32, 8)
    case = make_case([(3, 6), (9, 1)], shape, kernel_device)
    run(make_backend(backend_name, case, 4), case, shape)
    others = [layer for layer in range(LAYERS) if layer != LAYER]
    assert case.pool[:, :, others].isnan().all()
