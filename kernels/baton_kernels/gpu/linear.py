"""Products of few rows with constant weights on a GPU: one pass over the weights, everything else in the same launch.

A decode step is bound by reading the weights. cuBLAS reads them at 0.3 to 3.8 TB/s for up to 32 rows of the common
shapes, these kernels at 1.2 to 4.2 (docs/log.md), and they save the launches of the norm before the product and of the
activation or residual behind it.

The norm's scale is one number a row, so it is applied behind the product: its sum of squares is collected in the same
loop. Where a product has too few output tiles to fill the device, several programs share a tile along the input; the
last one to arrive adds up the others' parts, in a fixed order, so that results do not vary.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent import launch_of, let_successor_start, wait_for_predecessor
from baton_kernels.linear import MAX_ROWS, Norm


class LinearConfig(NamedTuple):
    """How a product is cut up; `tune` finds the best for a shape."""

    outputs: int  # a tile's rows of weights
    inputs: int  # a tile's columns of weights
    splits: int  # programs that share an output tile along the input
    warps: int
    stages: int  # tiles under way at once


class Workspace:
    """What products that share output tiles need between launches; for one stream at a time."""

    def __init__(self, device: torch.device, max_tiles: int = 4096, max_parts: int = 1 << 21) -> None:
        """`max_parts`: float32 partial results that can be under way."""
        self.arrived = torch.zeros(max_tiles, dtype=torch.int32, device=device)
        self.parts = torch.empty(max_parts, dtype=torch.float32, device=device)


@lru_cache(maxsize=16)
def workspace_on(device: torch.device) -> Workspace:
    """The one workspace of this process's only compute stream on a device."""
    return Workspace(device)


@triton.jit
def _dot(a, b, acc, UPCAST: tl.constexpr):
    if UPCAST:  # Triton's interpreter multiplies bfloat16 wrongly and sums float16 in float16
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _normed(x, weight, column, inside, OFFSET: tl.constexpr):
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if OFFSET:
        factor += 1.0
    return x.to(tl.float32) * factor


@triton.jit
def _finish(
    acc, acc2, square, x, out, residual, rows, row, column, num_out, num_in, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, PLUS: tl.constexpr,
):  # fmt: skip
    """Behind the loop: [outputs, rows] sums to the stored result."""
    if NORM:
        scale = tl.rsqrt(square / num_in + eps)
        acc *= scale[None, :]
        if GATED:
            acc2 *= scale[None, :]
    kind = out.dtype.element_ty
    if GATED:  # rounded where the torch path rounds
        acc = _silu(acc.to(kind).to(tl.float32)).to(kind).to(tl.float32) * acc2.to(kind).to(tl.float32)
    where = row[None, :].to(tl.int64) * num_out + column[:, None]
    mask = (row[None, :] < rows) & (column[:, None] < num_out)
    if PLUS:
        acc = acc.to(kind).to(tl.float32) + tl.load(residual + where, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + where, acc.to(kind), mask=mask)


@triton.jit
def _kernel(
    x, weight, out, residual, norm_weight, arrived, parts, rows, num_out, num_in, eps,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, OFFSET: tl.constexpr, GATED: tl.constexpr, PLUS: tl.constexpr,
    UPCAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    column = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    steps = tl.cdiv(tl.cdiv(num_in, INPUTS), SPLITS)
    begin = split * steps * INPUTS
    k = tl.arange(0, INPUTS)
    line = weight + tl.minimum(column, num_out - 1)[:, None].to(tl.int64) * num_in
    second = num_out.to(tl.int64) * num_in
    wait_for_predecessor(DEPENDENT)
    if ROWS == 1:  # a plain sum: the matrix units would work for 15 rows of nothing
        acc = tl.zeros([OUTPUTS, INPUTS], tl.float32)
        acc2 = tl.zeros([OUTPUTS, INPUTS], tl.float32)
        square = tl.zeros([INPUTS], tl.float32)
    else:
        acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
        acc2 = tl.zeros([OUTPUTS, ROWS], tl.float32)
        square = tl.zeros([INPUTS, ROWS] if NORM else [1, ROWS], tl.float32)
    for step in range(steps):
        at = begin + step * INPUTS + k
        inside = at < num_in
        if EVEN:
            w = tl.load(line + at[None, :], eviction_policy="evict_first")
        else:
            w = tl.load(line + at[None, :], mask=inside[None, :], other=0.0)
        if GATED:
            if EVEN:
                w2 = tl.load(line + second + at[None, :], eviction_policy="evict_first")
            else:
                w2 = tl.load(line + second + at[None, :], mask=inside[None, :], other=0.0)
        if ROWS == 1:
            value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            if NORM:
                square += value * value
                value = _normed(value, norm_weight, at, inside, OFFSET)
            acc += w.to(tl.float32) * value[None, :]
            if GATED:
                acc2 += w2.to(tl.float32) * value[None, :]
        else:
            here = inside[:, None] & (row[None, :] < rows)
            value = tl.load(x + row[None, :] * num_in + at[:, None], mask=here, other=0.0)  # [inputs, rows]
            if NORM:
                wide = value.to(tl.float32)
                square += wide * wide
                value = _normed(value, norm_weight, at[:, None], inside[:, None], OFFSET).to(w.dtype)
            acc = _dot(w, value, acc, UPCAST)
            if GATED:
                acc2 = _dot(w2, value, acc2, UPCAST)
    let_successor_start(DEPENDENT)
    if ROWS == 1:
        total = tl.sum(acc, axis=1)[:, None]
        total2 = tl.sum(acc2, axis=1)[:, None]
        squares = tl.sum(square, axis=0) + tl.zeros([1], tl.float32)
    else:
        total, total2, squares = acc, acc2, tl.sum(square, axis=0)
    if SPLITS == 1:
        _finish(total, total2, squares, x, out, residual, rows, row, column, num_out, num_in, eps, NORM, GATED, PLUS)
    else:
        size: tl.constexpr = OUTPUTS * ROWS
        stride: tl.constexpr = 2 * size + ROWS
        mine = parts + (tile * SPLITS + split) * stride
        inner = tl.arange(0, OUTPUTS)[:, None] * ROWS + row[None, :]
        tl.store(mine + inner, total)
        if GATED:
            tl.store(mine + size + inner, total2)
        if NORM:
            tl.store(mine + 2 * size + row, squares)
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.zeros([OUTPUTS, ROWS], tl.float32)
            total2 = tl.zeros([OUTPUTS, ROWS], tl.float32)
            squares = tl.zeros([ROWS], tl.float32)
            for other in range(SPLITS):
                theirs = parts + (tile * SPLITS + other) * stride
                total += tl.load(theirs + inner, volatile=True)
                if GATED:
                    total2 += tl.load(theirs + size + inner, volatile=True)
                if NORM:
                    squares += tl.load(theirs + 2 * size + row, volatile=True)
            tl.store(arrived + tile, 0)
            _finish(
                total, total2, squares, x, out, residual, rows, row, column, num_out, num_in, eps, NORM, GATED, PLUS
            )


def default_config(rows: int, num_out: int, num_in: int, gated: bool) -> LinearConfig:
    """What did well on an H200 over the common shapes (docs/log.md)."""
    if rows == 1:
        if num_out <= 4096:
            return LinearConfig(8, 1024, 1, 8, 2 if gated else 4)
        return LinearConfig(8 if gated else 16, 512, 1, 4, 4)
    outputs = 32 if num_out < 8192 or gated else 64
    splits = 1
    while num_out // outputs * splits < 200 and splits < 4:
        splits *= 2
    return LinearConfig(outputs, 128, splits, 4, 4)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    workspace: Workspace,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    config: LinearConfig | None = None,
) -> Tensor:
    """`linear.fused_linear` for at most `MAX_ROWS` rows; the same result up to rounding. Graph-safe.

    Args:
        x, weight: contiguous
        workspace: used by one launch at a time
        config: default: `default_config`'s

    Raises:
        ValueError: too many rows, or the workspace is too small for the configuration.
    """
    rows, num_in = x.shape
    if rows > MAX_ROWS:
        raise ValueError(f"got {rows} rows, expected at most {MAX_ROWS}")
    num_out = weight.shape[0] // (2 if gated else 1)
    out = torch.empty(rows, num_out, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    config = config or default_config(rows, num_out, num_in, gated)
    padded = 1 if rows == 1 else max(16, triton.next_power_of_2(rows))
    tiles = triton.cdiv(num_out, config.outputs)
    parts = tiles * config.splits * (2 * config.outputs + 1) * padded
    if config.splits > 1 and (tiles > len(workspace.arrived) or parts > len(workspace.parts)):
        raise ValueError(f"got {tiles} tiles and {parts} parts, more than the workspace holds; split less")
    launch = launch_of(x.device, rows)
    _kernel[(tiles, config.splits)](
        x, weight, out, out if residual is None else residual, norm.weight if norm else x,
        workspace.arrived, workspace.parts, rows, num_out, num_in, norm.eps if norm else 0.0,
        OUTPUTS=config.outputs, INPUTS=config.inputs, ROWS=padded, SPLITS=config.splits,
        EVEN=num_in % (config.inputs * config.splits) == 0,
        NORM=norm is not None, OFFSET=norm is not None and norm.weight_offset, GATED=gated, PLUS=residual is not None,
        UPCAST=not x.is_cuda, DEPENDENT=launch.dependent,
        num_warps=config.warps, num_stages=config.stages, launch_pdl=launch.dependent,
    )  # fmt: skip
    return out
