"""Which tokens may be drawn, as bits: applied to the logits of many rows at once."""

import torch
from torch import Tensor

_BITS = 8


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Sets the logits of tokens whose bit is 0 to -inf in place.

    Args:
        logits: [all rows, vocab] of any float type
        bitmask: [n, ceil(vocab / 32)] int32; bit `token % 32` of word `token // 32` is the token's; bits beyond the
            vocabulary are not looked at
        rows: [n] int64, distinct; the row of logits that each row of `bitmask` belongs to
    """
    vocab = logits.shape[1]
    powers = 1 << torch.arange(_BITS, dtype=torch.uint8, device=logits.device)
    octets = bitmask.contiguous().view(torch.uint8)  # the lowest bits first, on little-endian machines
    forbidden = (octets.unsqueeze(-1) & powers) == 0  # [n, octets, 8]
    logits[rows] = logits[rows].masked_fill(forbidden.flatten(1)[:, :vocab], -torch.inf)
