"""From logits to tokens: penalties, filters and a counter-based draw, for one row at a time beyond plain greedy."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton_kernels.random import gumbel_noise


class RowParams(NamedTuple):
    """What one row of logits is sampled with; the fields mean what they mean in vLLM's and OpenAI's APIs."""

    temperature: float  # 0 is greedy
    top_k: int  # 0: all
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    banned: Sequence[int]  # token ids that may not be drawn here
    seed: int
    position: int  # output position, counted from 0
    prompt: Sequence[int]  # token ids, for the repetition penalty
    output: Sequence[int]  # token ids so far

    @property
    def plain_greedy(self) -> bool:
        """Whether the largest raw logit is the answer."""
        return (
            self.temperature == 0
            and not self.logit_bias
            and not self.banned
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
            and self.repetition_penalty == 1
        )


def sample(logits: Tensor, rows: Sequence[RowParams]) -> Tensor:
    """Draws one token a row.

    Args:
        logits: [rows, vocab] float32; not changed

    Returns:
        [rows] int64 token ids
    """
    tokens = logits.argmax(dim=-1)
    for index, row in enumerate(rows):
        if not row.plain_greedy:
            tokens[index] = _sample_row(logits[index].clone(), row)
    return tokens


def _sample_row(logits: Tensor, row: RowParams) -> Tensor:
    apply_penalties(logits, row)
    if row.temperature == 0:
        return logits.argmax()
    logits -= logits.max()  # so that a tiny temperature cannot make two tokens infinitely good
    logits /= row.temperature
    apply_filters(logits, row.top_k, row.top_p, row.min_p)
    return (logits + gumbel_noise(row.seed, row.position, logits.numel(), logits.device)).argmax()


def apply_penalties(logits: Tensor, row: RowParams) -> None:
    """Changes `logits` [vocab] in place: repetition (prompt and output), frequency and presence (output), bias, bans.

    Repetition follows Keskar et al., "CTRL" (2019): positive logits are divided, negative ones multiplied.
    """
    if row.repetition_penalty != 1:
        seen = torch.tensor(sorted({*row.prompt, *row.output}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / row.repetition_penalty, values * row.repetition_penalty)
    if row.output and (row.frequency_penalty != 0 or row.presence_penalty != 0):
        tokens, counts = torch.tensor(row.output, device=logits.device).unique(return_counts=True)
        logits[tokens] -= row.frequency_penalty * counts + row.presence_penalty
    for token, bias in row.logit_bias.items():
        logits[token] += bias
    if row.banned:
        logits[torch.tensor(row.banned, device=logits.device)] = -torch.inf


def apply_filters(logits: Tensor, top_k: int, top_p: float, min_p: float) -> None:
    """Sets all but the kept tokens of `logits` [vocab] (already divided by the temperature) to -inf in place.

    min_p first (Nguyen et al., 2024: at least min_p times the best token's probability), then top_k, then top_p (the
    smallest set of best tokens whose probability reaches top_p; never empty).
    """
    if min_p > 0:
        probs = torch.softmax(logits, dim=-1)
        logits[probs < min_p * probs.max()] = -torch.inf
    if 0 < top_k < logits.numel():
        logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
    if top_p < 1:
        values, order = logits.sort(descending=True)
        probs = torch.softmax(values, dim=-1)
        dropped = probs.cumsum(dim=-1) - probs >= top_p
        logits[order[dropped]] = -torch.inf


def top_logprobs(logits: Tensor, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural log-probabilities under raw `logits` [vocab]: the token's, and the `count` best (token, value) pairs."""
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(count)
    return float(logprobs[token]), list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
