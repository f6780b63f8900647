"""Random weights of a model's shapes, made on the device: for benchmarks, which need the work and not the answers."""

import zlib
from typing import Any

import torch
from torch import Tensor

from baton.model_fingerprint import DUMMY_SEED


@torch.no_grad()
def dummy_tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = DUMMY_SEED
) -> Tensor:
    """A tensor that depends on its name, its shape, dtype, the kind of device and the seed alone."""
    return _fill(torch.empty(shape, dtype=dtype, device=device), name, seed)


@torch.no_grad()
def fill_module(module: Any, seed: int = DUMMY_SEED) -> None:
    """Gives all parameters of a torch module dummy values, in place; tied ones once. Buffers stay as they are."""
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            _fill(parameter, name, seed)


def _fill(tensor: Tensor, name: str, seed: int) -> Tensor:
    """Matrices keep the scale of what they are multiplied with, norms are near 1, biases near 0: nothing blows up."""
    # The CPU's generator takes 32 bits of a seed and drops the others.
    generator = torch.Generator(tensor.device).manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    if tensor.ndim > 1:
        bound = tensor.shape[-1] ** -0.5
        return tensor.uniform_(-bound, bound, generator=generator)
    centre = 0.0 if name.endswith("bias") else 1.0
    return tensor.uniform_(centre - 0.02, centre + 0.02, generator=generator)
