"""Log-probabilities of tokens as the engine tells them, in one pass over all rows."""

from collections.abc import Sequence

from torch import Tensor

from baton.types import TokenLogprobs
from baton_kernels.sampling import top_logprobs


def token_logprobs(logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """What each row says of its token and of its `counts[row]` best alternatives.

    Args:
        logits: [rows, vocab] float32, raw
        tokens: [rows] int64
        counts: one a row, each 0 to vocab
    """
    values, best_ids, best_values = (part.tolist() for part in top_logprobs(logits, tokens, max(counts)))
    return [
        TokenLogprobs(token, value, tuple(zip(ids[:count], others[:count], strict=True)))
        for token, value, ids, others, count in zip(tokens.tolist(), values, best_ids, best_values, counts, strict=True)
    ]
