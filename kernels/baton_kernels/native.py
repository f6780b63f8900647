"""The compiled CPU kernels of cpu_layers.c: which tensors they take, and how they are called.

They are built with the package where a C compiler is found, and are optional: `usable` tells, and callers fall back on
their torch twins, which have the same contracts. ctypes releases the interpreter lock during a call.
"""

import ctypes
import functools
import glob
import os

import torch
from torch import Tensor

_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
_MAX_GROUP, _MAX_DIM = 64, 512  # of cpu_layers.c's arrays on the stack
_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "baton_rms_norm": [_P, _P, _P, _L, _I, _F],
    "baton_rotate_and_write": [_P, _P, _P, _P, _P, _L, _I, _I, _I, _I, _I],
    "baton_paged_decode": [_P, _L, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _F, _P],
}


@functools.cache
def _library() -> ctypes.CDLL | None:
    """None where it was not built. torch is imported by now, so its OpenMP run-time library is there to bind to."""
    found = glob.glob(os.path.join(os.path.dirname(__file__), "_cpu_layers.*so"))
    if not found:
        return None
    library = ctypes.CDLL(found[0])
    for name, arguments in _SIGNATURES.items():
        for suffix in _SUFFIX.values():
            getattr(library, f"{name}_{suffix}").argtypes = arguments
    library.baton_linear_f32.argtypes = [_P, _P, _P, _P, _L, _L, _L, _I]
    return library


def available() -> bool:
    """Whether the kernels were built with the package."""
    return _library() is not None


def usable(tensor: Tensor) -> bool:
    """Whether the kernels take tensors of this device and dtype."""
    return tensor.device.type == "cpu" and tensor.dtype in _SUFFIX and _library() is not None


def _call(name: str, dtype: torch.dtype, *arguments: object) -> None:
    if getattr(_library(), f"{name}_{_SUFFIX[dtype]}")(*arguments):
        raise MemoryError(f"{name}: no memory left for scratch space")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin: `baton_kernels.layers.rms_norm`. x: [tokens, hidden], contiguous."""
    out = torch.empty_like(x)
    _call("baton_rms_norm", x.dtype, x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], eps)
    return out


def rotate_and_write(qkv: Tensor, cos: Tensor, sin: Tensor, pool: Tensor, rows: Tensor, heads: int, layer: int) -> None:
    """Rotates queries in place, and stores rotated keys and values; twin: `baton_kernels.attention.rotate_and_write`.

    Args:
        qkv: [tokens, heads + 2 * kv_heads, head_dim], contiguous
        cos, sin: [tokens, head_dim] in qkv's dtype, contiguous
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim], contiguous
        rows: [tokens, kv_heads] int64, where the keys of layer 0 go, in rows of head_dim
    """
    kv_heads, block_size, dim = pool.shape[1], pool.shape[4], pool.shape[5]
    _call(
        "baton_rotate_and_write",
        qkv.dtype,
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        pool.data_ptr(),
        rows.data_ptr(),
        qkv.shape[0],
        heads,
        kv_heads,
        dim,
        block_size,
        layer,
    )


def paged_decode(
    queries: Tensor,
    pool: Tensor,
    layer: int,
    tokens: Tensor,
    tables: Tensor,
    contexts: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """One new token a sequence, straight out of the pool; twin: the decode part of `baton_kernels.attention`.

    Args:
        queries: [batch tokens, heads, head_dim]; the last two axes contiguous
        pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim], contiguous
        tokens: [seqs] int64, index of each sequence's token in the batch
        tables: [seqs, width] int32 block ids
        contexts: [seqs] int32, tokens attended to
        out: [batch tokens, heads, head_dim], contiguous; the rows of `tokens` are written
    """
    _, kv_heads, layers, _, block_size, dim = pool.shape
    heads = queries.shape[1]
    if heads // kv_heads > _MAX_GROUP or dim > _MAX_DIM:
        raise ValueError(
            f"got {heads // kv_heads} heads a KV head of {dim}, expected at most {_MAX_GROUP} of {_MAX_DIM}"
        )
    _call(
        "baton_paged_decode",
        queries.dtype,
        queries.data_ptr(),
        queries.stride(0),
        pool.data_ptr(),
        tokens.data_ptr(),
        tables.data_ptr(),
        contexts.data_ptr(),
        tables.shape[0],
        tables.shape[1],
        heads,
        kv_heads,
        layers,
        layer,
        dim,
        block_size,
        scale,
        out.data_ptr(),
    )


_PANEL = 32  # columns, as in cpu_layers.c
_FOLLOW_UPS = {"nothing": 0, "silu": 1, "times": 2, "plus": 3}


def linear_usable(weight: Tensor) -> bool:
    """Whether `linear` is the fast way for [out, in] weights here: float32 on a processor with AVX-512."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    return (
        usable(weight)
        and weight.dtype is torch.float32
        and capability.startswith("AVX512")
        and weight.shape[0] % _PANEL == 0
    )


def pack_linear(weight: Tensor) -> Tensor:
    """[out, in] weights in the order that `linear` streams them in: [out / 32, in, 32]."""
    return weight.view(-1, _PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, follow_up: str = "nothing", other: Tensor | None = None) -> Tensor:
    """x W^T, then what `follow_up` says; twin: torch's F.linear with F.silu, a product or a sum. Made for few rows.

    Args:
        x: [rows, in] float32, contiguous
        packed: `pack_linear(W)`
        follow_up: "nothing", "silu", "times" (times `other`) or "plus" (plus `other`)
        other: [rows, out] float32, contiguous

    Returns:
        [rows, out]
    """
    rows, outer, inner = x.shape[0], packed.shape[0] * _PANEL, packed.shape[1]
    out = torch.empty(rows, outer)
    library = _library()
    assert library is not None
    library.baton_linear_f32(
        x.data_ptr(),
        packed.data_ptr(),
        None if other is None else other.data_ptr(),
        out.data_ptr(),
        rows,
        outer,
        inner,
        _FOLLOW_UPS[follow_up],
    )
    return out
