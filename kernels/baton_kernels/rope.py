"""Angular frequencies of rotary embedding [dim / 2], float32, plain and stretched for longer texts than in training.

`dim` is the number of rotated elements of a head. What stretches by the length that is served takes it as an argument.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def default(dim: int, theta: float) -> Tensor:
    """theta^(-2i / dim) (Su et al., 2021)."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def linear(dim: int, theta: float, factor: float) -> Tensor:
    """Positions are squeezed by `factor` (Chen et al., 2023)."""
    return default(dim, theta) / factor


def dynamic(dim: int, theta: float, factor: float, max_position: int, length: int) -> Tensor:
    """A larger base for texts of `length` tokens, if that is more than `max_position` ("dynamic NTK", bloc97, 2023)."""
    stretch = factor * max(length, max_position) / max_position - (factor - 1.0)
    return default(dim, theta * stretch ** (dim / (dim - 2)))


def longrope(dim: int, theta: float, factors: Sequence[float]) -> Tensor:
    """A divisor for each frequency, found by search (Ding et al., 2024)."""
    return default(dim, theta) / torch.tensor(factors, dtype=torch.float32)


def llama3(
    dim: int, theta: float, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position: int
) -> Tensor:
    """Waves that fit into the original context `high_freq_factor` times stay, those that fit fewer than
    `low_freq_factor` times are squeezed by `factor`, and those between get a part of both (Llama 3.1, 2024)."""
    plain = default(dim, theta)
    fits = original_max_position * plain / (2.0 * math.pi)
    kept = ((fits - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return plain / factor * (1.0 - kept) + plain * kept


def yarn(
    dim: int,
    theta: float,
    factor: float,
    original_max_position: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Tensor:
    """Like `llama3`, with a ramp over the frequency's index instead of its wavelength (Peng et al., 2023).

    The ramp lies between the frequencies that turn `beta_fast` and `beta_slow` times within the original context,
    rounded outwards to whole indices with `truncate`.
    """

    def index_of(turns: float) -> float:
        return dim * math.log(original_max_position / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))

    low, high = index_of(beta_fast), index_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    squeezed = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    plain = default(dim, theta)
    return plain / factor * squeezed + plain * (1.0 - squeezed)
