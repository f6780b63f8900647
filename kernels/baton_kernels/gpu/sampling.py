"""Drawing tokens on a GPU without sorting the vocabulary: the largest of scaled logits plus counter-based noise.

The noise is defined in double precision, so that CPU and GPU draw the same. Its logarithms took most of the time, so
single precision finds the winner, and double precision is asked where that cannot tell.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent import launch_of, wait_for_predecessor

_PART = 4096  # vocabulary entries to a program
_MARGIN = tl.constexpr(1e-4)  # of scores in single precision, twice the noise's error and more
_MARGIN_SHARE = tl.constexpr(1e-6)  # of the score, more than twice what rounding a sum does


@triton.jit
def _philox(seed, counter, position):
    """Four uint32 words for each counter, as `random.philox` gives them."""
    c0 = counter.to(tl.uint32)
    c1 = tl.zeros_like(c0) + position.to(tl.uint32)
    c2, c3 = tl.zeros_like(c0), tl.zeros_like(c0)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox_impl(c0, c1, c2, c3, k0, k1, 10)


@triton.jit
def _gumbel(word):
    uniform = (word.to(tl.float64) + 0.5) / 4294967296.0
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _fast_gumbel(word):
    """`_gumbel` in float32: within 2.5e-5 of it with the hardware's logarithms, whose absolute error is 2e-7."""
    uniform = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2**-32
    rest = ((~word).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 1 - uniform, without cancellation
    series = rest * (1 + rest * (0.5 + rest * (0.33333333 + rest * (0.25 + rest * 0.2))))
    return -tl.log(tl.where(rest < 0.015625, series, -tl.log(uniform)))


@triton.jit
def _scaled(logits, index, vocab, temperature, largest, floor):
    value = tl.load(logits + index, mask=index < vocab, other=float("-inf")).to(tl.float32)
    if temperature > 0:
        value = tl.div_rn(value - largest, temperature)  # as the floor was: a token at the floor is not below it
        value = tl.where(value < floor, float("-inf"), value)
    return value


@triton.jit
def _first_of(top, score, index, vocab):
    return tl.min(tl.where(score == top, index, vocab), axis=0)


@triton.jit
def _part_kernel(
    logits, temperatures, floors, largests, seeds, positions, values, indices, vocab, stride, parts, PART: tl.constexpr
):
    row, part = tl.program_id(0), tl.program_id(1)
    groups: tl.constexpr = PART // 4
    temperature, floor, largest = tl.load(temperatures + row), tl.load(floors + row), tl.load(largests + row)
    seed, position = tl.load(seeds + row), tl.load(positions + row)
    group = part * groups + tl.arange(0, groups)
    w0, w1, w2, w3 = _philox(seed, group, position)
    base = logits + row.to(tl.int64) * stride
    i0 = group * 4
    v0 = _scaled(base, i0, vocab, temperature, largest, floor)
    v1 = _scaled(base, i0 + 1, vocab, temperature, largest, floor)
    v2 = _scaled(base, i0 + 2, vocab, temperature, largest, floor)
    v3 = _scaled(base, i0 + 3, vocab, temperature, largest, floor)
    s0, s1, s2, s3 = v0, v1, v2, v3
    if temperature > 0:
        s0, s1, s2, s3 = v0 + _fast_gumbel(w0), v1 + _fast_gumbel(w1), v2 + _fast_gumbel(w2), v3 + _fast_gumbel(w3)
    top = tl.max(tl.maximum(tl.maximum(s0, s1), tl.maximum(s2, s3)), axis=0)
    if temperature > 0:
        # Double precision decides, but only among scores so close that single precision cannot.
        least = top - (_MARGIN + tl.abs(top) * _MARGIN_SHARE)
        near = (s0 >= least).to(tl.int32) + (s1 >= least) + (s2 >= least) + (s3 >= least)
        if tl.sum(near, axis=0) != 1:
            s0, s1, s2, s3 = v0 + _gumbel(w0), v1 + _gumbel(w1), v2 + _gumbel(w2), v3 + _gumbel(w3)
            top = tl.max(tl.maximum(tl.maximum(s0, s1), tl.maximum(s2, s3)), axis=0)
    # Of equal values the first index wins, as in `torch.argmax` on the CPU.
    best = tl.minimum(_first_of(top, s0, i0, vocab), _first_of(top, s1, i0 + 1, vocab))
    best = tl.minimum(best, tl.minimum(_first_of(top, s2, i0 + 2, vocab), _first_of(top, s3, i0 + 3, vocab)))
    if temperature > 0:  # exact, for the comparison with other parts
        x0, x1, x2, x3 = _philox(seed, best // 4, position)
        lane = best % 4
        word = tl.where(lane == 0, x0, tl.where(lane == 1, x1, tl.where(lane == 2, x2, x3)))
        top = _scaled(base, best, vocab, temperature, largest, floor) + _gumbel(word)
    tl.store(values + row * parts + part, top)
    tl.store(indices + row * parts + part, best)


@triton.jit
def _largest_kernel(logits, values, indices, vocab, stride, parts, PART: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_predecessor(DEPENDENT)
    row, part = tl.program_id(0), tl.program_id(1)
    index = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row.to(tl.int64) * stride + index, mask=index < vocab, other=float("-inf"))
    value = value.to(tl.float32)
    top = tl.max(value, axis=0)
    tl.store(values + row * parts + part, top)
    tl.store(indices + row * parts + part, tl.min(tl.where(value == top, index, vocab), axis=0))


@triton.jit
def _pick_kernel(values, indices, tokens, vocab, parts, PARTS: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_predecessor(DEPENDENT)
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    value = tl.load(values + row * parts + part, mask=part < parts, other=float("-inf"))
    index = tl.load(indices + row * parts + part, mask=part < parts, other=vocab)
    top = tl.max(value, axis=0)
    chosen = tl.min(tl.where(value == top, index, vocab - 1), axis=0)  # where all are NaN, still a token
    tl.store(tokens + row, chosen.to(tl.int64))


def draw(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, floors: Tensor, largests: Tensor
) -> Tensor:
    """One token a row: the largest logit where the temperature is 0, else a draw by the Gumbel-max trick.

    Graph-safe. The noise is that of `random.gumbel_noise`, so a row's token depends on nothing but the row.

    Args:
        logits: [rows, vocab], float32, float16 or bfloat16; rows may be strided
        temperatures: [rows] float32
        seeds: [rows] int64, 64 bits each
        positions: [rows] int64 output positions
        floors: [rows] float32; scaled logits ((logit - largest) / temperature) below it cannot be drawn; -inf: all can
        largests: [rows] float32 largest logit of each row

    Returns:
        [rows] int64
    """
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _PART)
    values = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    indices = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _part_kernel[(rows, parts)](
            logits, temperatures, floors, largests, seeds, positions, values, indices, vocab, logits.stride(0), parts,
            PART=_PART, num_warps=4,
        )  # fmt: skip
        _pick(values, indices, tokens, vocab)
    return tokens


def argmax(logits: Tensor) -> Tensor:
    """The index of each row's largest value, the first of several: `torch.argmax`, with the device full of few rows.

    Graph-safe. Rows of NaN give a token, too, whichever.

    Args:
        logits: [rows, vocab], float32, float16 or bfloat16; rows may be strided

    Returns:
        [rows] int64
    """
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _PART)
    values = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    indices = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        dependent = launch_of(logits.device, rows).dependent
        _largest_kernel[(rows, parts)](
            logits, values, indices, vocab, logits.stride(0), parts,
            PART=_PART, DEPENDENT=dependent, num_warps=4, launch_pdl=dependent,
        )  # fmt: skip
        _pick(values, indices, tokens, vocab)
    return tokens


def _pick(values: Tensor, indices: Tensor, tokens: Tensor, vocab: int) -> None:
    rows, parts = values.shape
    dependent = launch_of(values.device, rows).dependent
    _pick_kernel[(rows,)](
        values, indices, tokens, vocab, parts,
        PARTS=triton.next_power_of_2(parts), DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
