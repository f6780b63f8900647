"""The token bitmask against a slow twin."""

import pytest
import torch

from baton_kernels.bitmask import apply_token_bitmask


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100, 1024])
def test_equals_bit_by_bit(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(5, vocab, generator=generator)
    words = -(-vocab // 32)
    bitmask = torch.randint(-(2**31), 2**31, (3, words), generator=generator, dtype=torch.int64).to(torch.int32)
    rows = torch.tensor([4, 0, 2])
    expected = logits.clone()
    for index, row in enumerate(rows.tolist()):
        for token in range(vocab):
            if not int(bitmask[index, token // 32]) >> token % 32 & 1:
                expected[row, token] = -torch.inf
    apply_token_bitmask(logits, bitmask, rows)
    assert torch.equal(logits, expected)
