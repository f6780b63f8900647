"""Counter-based random numbers: the same (seed, position, index) gives the same number on any worker, in any batch.

Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), in torch's int64
arithmetic, whose wrap-around keeps the low 64 bits of every product exact.
"""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _mul_hi_lo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    product = b * a
    return (product >> 32) & _LOW, product & _LOW


def philox(seed: Tensor, counter: Tensor, position: Tensor) -> Tensor:
    """Four 32-bit words for each counter; the arguments are broadcast against each other.

    Args:
        seed: [...] int64, whose 64 bits are the key
        counter: [...] int64 in [0, 2**32), first counter word
        position: [...] int64 in [0, 2**32), second counter word

    Returns:
        [..., 4] int64 in [0, 2**32)
    """
    c0, c1 = torch.broadcast_tensors(counter & _LOW, position & _LOW)
    c2 = c3 = torch.zeros_like(c0)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        hi0, lo0 = _mul_hi_lo(_MULTIPLIERS[0], c0)
        hi1, lo1 = _mul_hi_lo(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return torch.stack((c0, c1, c2, c3), dim=-1)


def gumbel_noise(seed: Tensor, position: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise over a vocabulary, for one output position of each row.

    Token t has word t % 4 of counter t // 4, so that its noise depends on (seed, position, t) alone.

    Args:
        seed: [rows] int64
        position: [rows] int64
        size: of the vocabulary

    Returns:
        [rows, size] float32; adding it to log-probabilities and taking the argmax draws from the distribution
    """
    counter = torch.arange(-(-size // 4), device=seed.device)
    words = philox(seed[:, None], counter, position[:, None]).flatten(1)[:, :size]
    uniform = (words.to(torch.float64) + 0.5) / 2**32  # in (0, 1), both ends excluded
    return (-torch.log(-torch.log(uniform))).to(torch.float32)
