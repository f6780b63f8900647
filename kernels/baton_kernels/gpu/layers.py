"""Element-wise parts of a transformer layer on a GPU: norm with the residual in front of it, and gated activation.

Each kernel reads and writes every value once: between two matrix products a decode step is bound by the number of
launches and by memory, not by arithmetic. All are graph-safe: no host reads, no allocation but the returned tensors.
Products and sums are made in float32 and rounded where the torch path rounds, which gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent import launch_of, let_successor_start, wait_for_predecessor


@triton.jit
def _norm_kernel(
    x, residual, weight, out, width, eps,
    ADD: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    let_successor_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_predecessor(DEPENDENT)
    value = tl.load(x + row * width + columns, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + columns, wide.to(value.dtype), mask=inside)
        wide = wide.to(value.dtype).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide) / width + eps)
    if OFFSET:
        normed = normed * (1.0 + factor)
    else:
        normed = normed.to(value.dtype).to(tl.float32) * factor
    tl.store(out + row * width + columns, normed.to(value.dtype), mask=inside)


@triton.jit
def _silu_mul_kernel(x, out, width, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(x + row * 2 * width + width + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + columns, (activated * up.to(tl.float32)).to(gate.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: bool = False) -> Tensor:
    """`layers.rms_norm` on a GPU.

    Args:
        x: [tokens, hidden], contiguous
        weight: [hidden]
        weight_offset: whether 1 + weight is the factor (Gemma)
    """
    out = torch.empty_like(x)
    _launch_norm(x, None, weight, out, eps, weight_offset)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: bool = False) -> Tensor:
    """Adds `x` to `residual` in place, and returns the norm of the sum.

    Args:
        x, residual: [tokens, hidden], contiguous, of one dtype; the sum is rounded to it before the norm
        weight: [hidden]
    """
    out = torch.empty_like(x)
    _launch_norm(x, residual, weight, out, eps, weight_offset)
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's element-wise part (Shazeer, 2020): silu of the first half times the second half.

    Args:
        gate_up: [tokens, 2 * width], contiguous

    Returns:
        [tokens, width]
    """
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        dependent = launch_of(gate_up.device, tokens).dependent
        _silu_mul_kernel[(tokens, triton.cdiv(width, 1024))](
            gate_up, out, width, BLOCK=1024, DEPENDENT=dependent, num_warps=4, launch_pdl=dependent
        )
    return out


def _launch_norm(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float, offset: bool) -> None:
    tokens, width = x.shape
    if tokens:
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // 512))
        target = x if residual is None else residual
        launch = launch_of(x.device, tokens)
        _norm_kernel[(tokens,)](
            x, target, weight, out, width, eps, ADD=residual is not None, OFFSET=offset, BLOCK=block,
            DEPENDENT=launch.dependent, EARLY=launch.early, num_warps=warps, launch_pdl=launch.dependent,
        )  # fmt: skip
