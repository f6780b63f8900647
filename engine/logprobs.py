"""Log-probabilities of tokens as the engine tells them, in one pass over all rows."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from baton.types import TokenLogprobs
from baton_kernels.sampling import top_logprobs
from engine.models.base import Model
from engine.request import Request
from engine.upload import download, upload

# Logits of a long chunk would be large: 2,048 rows over a vocabulary of 150,000 are 1.2 GB.
_ROWS_AT_ONCE = 128


class LogprobsOnTheWay(NamedTuple):
    """Host memory that holds what was asked for once the work enqueued so far has ended."""

    tokens: Tensor  # [rows] int64
    values: Tensor  # [rows] float32
    best_ids: Tensor  # [rows, n] int64, n the largest count
    best_values: Tensor  # [rows, n] float32
    counts: Sequence[int]  # of alternatives to tell, one a row

    def read(self) -> list[TokenLogprobs]:
        """One a row, once they are there."""
        tokens, values, best_ids, best_values = (part.tolist() for part in self[:4])
        return [
            TokenLogprobs(token, value, tuple(zip(ids[:count], others[:count], strict=True)))
            for token, value, ids, others, count in zip(tokens, values, best_ids, best_values, self.counts, strict=True)
        ]


def token_logprobs(logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> LogprobsOnTheWay:
    """What each row says of its token and of its `counts[row]` best alternatives.

    Args:
        logits: [rows, vocab] float32, raw
        tokens: [rows] int64
        counts: one a row, each 0 to vocab
    """
    values, best_ids, best_values = top_logprobs(logits, tokens, max(counts))
    return LogprobsOnTheWay(download(tokens), download(values), download(best_ids), download(best_values), counts)


class PromptPart(NamedTuple):
    """Prompt positions that one step's logits speak of: those of row `first_row` of the first position, and so on."""

    request: Request
    positions: range
    first_row: int  # of the flattened batch; it computes the token in front of the first position


def prompt_logprobs(model: Model, hidden: Tensor, part: PromptPart) -> list[LogprobsOnTheWay]:
    """What the model says of the prompt tokens that are at `part.positions`.

    Args:
        hidden: [tokens, hidden] of the flattened batch, out of `Model.forward`
    """
    request, positions = part.request, part.positions
    rows = hidden[part.first_row : part.first_row + len(positions)]
    tokens = upload(request.tokens[positions.start : positions.stop], hidden.device)
    count = request.sampling.num_prompt_logprobs or 0
    return [
        token_logprobs(model.logits(few_rows), few_tokens, [count] * len(few_tokens))
        for few_rows, few_tokens in zip(rows.split(_ROWS_AT_ONCE), tokens.split(_ROWS_AT_ONCE), strict=True)
    ]
