"""What a step's rows are sampled with, as a structure of tensors."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class RowParams(NamedTuple):
    """What one row of logits is sampled with; the fields mean what they mean in vLLM's and OpenAI's APIs."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = {}
    allowed: Sequence[int] = ()  # token ids, each once; empty: all
    banned: Sequence[int] = ()  # token ids that may not be drawn here
    seed: int = 0
    position: int = 0  # output position, counted from 0
    prompt: Sequence[int] = ()  # token ids, for the repetition penalty
    output: Sequence[int] = ()  # token ids so far, for all penalties

    @property
    def penalized(self) -> bool:
        """Whether the tokens so far matter."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


class TokenSet(NamedTuple):
    """Tokens of several rows in coordinate form; what `row` counts is said where the set is used."""

    row: Tensor  # [n] int64
    token: Tensor  # [n] int64


class SamplingBatch(NamedTuple):
    """The rows of one step on the device of their logits.

    Which rows need which work is told by index tensors, ascending. Their lengths are known on the host, so nothing is
    read back from the device to skip what no row needs.
    """

    temperature: Tensor  # [rows] float32
    top_k: Tensor  # [rows] int64; 0: all, else below the vocabulary's size
    top_p: Tensor  # [rows] float32
    min_p: Tensor  # [rows] float32
    presence_penalty: Tensor  # [rows] float32
    frequency_penalty: Tensor  # [rows] float32
    repetition_penalty: Tensor  # [rows] float32
    seed: Tensor  # [rows] int64, the 64 bits of the seed
    position: Tensor  # [rows] int64
    random_rows: Tensor  # [*] int64: temperature above 0; the others are greedy
    top_k_rows: Tensor  # [*] int64: random rows with a top_k, and perhaps a top_p
    top_p_rows: Tensor  # [*] int64: random rows with a top_p below 1 and no top_k; these alone cost a sort
    largest_top_k: int  # of `top_k_rows`; 0 without any
    penalized_rows: Tensor  # [p] int64
    prompt: TokenSet  # of penalized rows; `row` indexes `penalized_rows`; tokens may come several times
    output: TokenSet  # the same
    restricted_rows: Tensor  # [*] int64: rows that may only draw the tokens of `allowed`
    allowed: TokenSet  # `row` indexes the logits
    banned: TokenSet  # `row` indexes the logits
    bias: TokenSet  # `row` indexes the logits; each pair once
    bias_value: Tensor  # [n] float32, of `bias`

    @property
    def edits_logits(self) -> bool:
        """Whether any row's largest logit may not be the one that the model gave."""
        edits = (self.restricted_rows, self.banned.row, self.bias.row, self.penalized_rows)
        return any(edit.numel() for edit in edits)


def make_batch(rows: Sequence[RowParams], vocab_size: int, device: torch.device) -> SamplingBatch:
    """Gathers rows; all token ids are in [0, vocab_size), checked by the caller."""
    top_ks = [row.top_k if row.top_k < vocab_size else 0 for row in rows]
    random = [index for index, row in enumerate(rows) if row.temperature > 0]
    penalized = [index for index, row in enumerate(rows) if row.penalized]
    pinned = device.type == "cuda"  # a copy from pageable memory would wait for all work before it

    def tensor(values: object, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)

    # Two tensors, so that a step costs two copies to the device for them; each field is contiguous, as kernels expect.
    floats = tensor(
        [
            [row.temperature for row in rows],
            [row.top_p for row in rows],
            [row.min_p for row in rows],
            [row.presence_penalty for row in rows],
            [row.frequency_penalty for row in rows],
            [row.repetition_penalty for row in rows],
        ],
        torch.float32,
    )
    temperature, top_p, min_p, presence, frequency, repetition = floats.unbind()
    ints = [top_ks, [_signed(row.seed) for row in rows], [row.position for row in rows]]
    top_k, seed, position = tensor(ints, torch.int64).unbind()

    def indices(values: Sequence[int]) -> Tensor:
        return tensor(values, torch.int64)

    def tokens(lists: Sequence[Sequence[int]]) -> TokenSet:
        row: list[int] = []
        for index, ids in enumerate(lists):
            row += [index] * len(ids)
        return TokenSet(indices(row), indices([*itertools.chain.from_iterable(lists)]))

    biases = [value for row in rows for value in row.logit_bias.values()]
    return SamplingBatch(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        seed=seed,
        position=position,
        random_rows=indices(random),
        top_k_rows=indices([index for index in random if top_ks[index]]),
        top_p_rows=indices([index for index in random if rows[index].top_p < 1 and not top_ks[index]]),
        largest_top_k=max((top_ks[index] for index in random), default=0),
        penalized_rows=indices(penalized),
        prompt=tokens([rows[index].prompt for index in penalized]),
        output=tokens([rows[index].output for index in penalized]),
        restricted_rows=indices([index for index, row in enumerate(rows) if row.allowed]),
        allowed=tokens([row.allowed for row in rows]),
        banned=tokens([row.banned for row in rows]),
        bias=tokens([list(row.logit_bias) for row in rows]),
        bias_value=tensor(biases, torch.float32),
    )


def _signed(seed: int) -> int:
    """The int64 of the same 64 bits."""
    return seed - 2**64 if seed >= 2**63 else seed
