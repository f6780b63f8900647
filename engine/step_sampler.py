"""Draws a step's tokens on the device; what stays the same from step to step is not built again."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton_kernels.argmax import argmax
from baton_kernels.bitmask import apply_token_bitmask
from baton_kernels.sampling import sample
from baton_kernels.sampling_batch import RowParams, SamplingBatch, make_batch
from engine.bans import banned_tokens
from engine.logprobs import LogprobsOnTheWay, token_logprobs
from engine.request import Request
from engine.upload import upload


class _Kept(NamedTuple):
    """How a list of requests was sampled in the newest step."""

    requests: list[Request]
    batch: SamplingBatch | None  # None: the token of the largest logit is all that is wanted
    logprob_rows: list[int]
    stays: bool  # in the next step only the output positions differ


class StepSampler:
    """For one engine core, whose steps it sees in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept = _Kept([], None, [], stays=True)

    def take(self, requests: list[Request], vocab_size: int) -> None:
        """Turns to the next step's requests."""
        kept = self._kept
        if not kept.stays or kept.requests != requests:
            self._kept = self._prepare(requests, vocab_size)
        elif kept.batch:
            kept.batch.position.add_(1)

    @property
    def wants_logits(self) -> bool:
        """Whether more is wanted of the step than the token of each largest logit."""
        return self._kept.batch is not None or self.wants_logprobs

    def draw(self, logits: Tensor) -> Tensor:
        """One token for each request, which must not wait for anything on the host.

        Args:
            logits: [requests, vocab] float32

        Returns:
            [requests] int64
        """
        kept = self._kept
        if kept.batch is None:
            return argmax(logits)
        return sample(_with_grammars(logits, kept.requests), kept.batch)

    def logprobs(self, logits: Tensor, drawn: Tensor) -> tuple[list[int], LogprobsOnTheWay]:
        """What is to be told of the draws that `draw` has just made, and the rows it is of.

        Args:
            logits: [requests, vocab] float32, raw
            drawn: [requests] int64
        """
        wanted, requests = self._kept.logprob_rows, self._kept.requests
        rows = upload(wanted, self._device)
        return wanted, token_logprobs(
            logits[rows], drawn[rows], [requests[row].sampling.num_logprobs or 0 for row in wanted]
        )

    @property
    def wants_logprobs(self) -> bool:
        """Whether the requests of the newest step want any."""
        return bool(self._kept.logprob_rows)

    def _prepare(self, requests: list[Request], vocab_size: int) -> _Kept:
        plain = all(map(_is_plain, requests))
        return _Kept(
            requests,
            None if plain else make_batch([_row_params(request) for request in requests], vocab_size, self._device),
            [row for row, request in enumerate(requests) if request.sampling.num_logprobs is not None],
            not any(map(_changes, requests)),
        )


def _with_grammars(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """What the grammars leave of the logits, which stay as they are: log-probabilities are the model's own."""
    allowed = {row: request.grammar.allowed for row, request in enumerate(requests) if request.grammar}
    if not allowed:
        return logits
    masked = logits.clone()
    bitmask = torch.stack([*allowed.values()]).to(logits.device, non_blocking=True)
    apply_token_bitmask(masked, bitmask, torch.tensor([*allowed], device=logits.device))
    return masked


def _is_plain(request: Request) -> bool:
    """Whether the token of the largest logit is drawn."""
    sampling = request.sampling
    return (
        sampling.temperature == 0
        and request.grammar is None
        and not sampling.logit_bias
        and not sampling.allowed_token_ids
        and not sampling.penalized
        and not banned_tokens(request)
    )


def _changes(request: Request) -> bool:
    """Whether the next draw may differ from this one in more than its output position."""
    return request.needs_known_tokens or request.next_output_position < request.sampling.min_tokens


def _row_params(request: Request) -> RowParams:
    sampling, penalized = request.sampling, request.sampling.penalized
    return RowParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        allowed=sampling.allowed_token_ids,
        banned=banned_tokens(request),
        seed=sampling.seed,
        position=request.next_output_position,
        prompt=request.tokens[: request.num_prompt_tokens] if penalized else (),
        output=request.tokens[request.num_prompt_tokens :] if penalized else (),
    )
