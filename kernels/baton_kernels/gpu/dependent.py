"""Programmatic dependent launch: a kernel is placed on the device before the one ahead has ended, and waits for it.

Between two launches of a graph a GPU idles for half a microsecond, and a step has hundreds of them. From compute
capability 9.0 on, what a kernel does before `wait_for_predecessor` overlaps with the end of the kernel before it. Every
kernel that is launched so must wait in every program: the kernel behind it relies on that for all before.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.linear import MAX_ROWS


class Launch(NamedTuple):
    """How a kernel stands to the ones around it; both are compile-time constants."""

    dependent: bool  # whether it waits itself, instead of being launched behind the kernel before it
    early: bool  # whether the next one may come at once: where kernels are so short that nothing is taken from them


@triton.jit
def let_successor_start(DEPENDENT: tl.constexpr):
    """The next kernel may be placed beside this one, once all programs have come here.

    There it takes room and bandwidth: this belongs behind the part that is bound by memory (docs/log.md).
    """
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def wait_for_predecessor(DEPENDENT: tl.constexpr):
    """Returns when everything that came before this kernel has been written."""
    if DEPENDENT:
        gdc_wait()


def launch_of(device: torch.device, rows: int) -> Launch:
    """For a step of `rows` tokens. With more than `MAX_ROWS`, others' kernels stand between ours: nothing to gain."""
    dependent = rows <= MAX_ROWS and _can_wait(device)
    return Launch(dependent, dependent and rows == 1)


@lru_cache(maxsize=16)
def _can_wait(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
