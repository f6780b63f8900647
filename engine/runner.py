"""Executes a step plan: builds the flattened batch, runs the model over the KV pool, draws the tokens."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from baton.types import KvLayout, TokenLogprobs
from baton_kernels import native
from baton_kernels.attention import SequenceSlice
from baton_kernels.attn.registry import make_attention
from baton_kernels.bitmask import apply_token_bitmask
from baton_kernels.sampling import sample
from baton_kernels.sampling_batch import RowParams, make_batch
from engine.bans import banned_tokens
from engine.config import EngineConfig
from engine.device import open_device
from engine.logprobs import PromptPart, prompt_logprobs, token_logprobs
from engine.models.registry import load_model
from engine.request import Key, Request
from engine.scheduler.base import StepPlan

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class StepResult(NamedTuple):
    """Sampled tokens by request, and log-probabilities where asked for."""

    tokens: dict[Key, int]
    logprobs: dict[Key, TokenLogprobs]
    prompt_logprobs: Mapping[Key, Sequence[TokenLogprobs]] = {}  # of the positions in `Request.positions_told_by`


class ModelRunner:
    """The model, the KV pool and the device; created once per engine core."""

    def __init__(self, config: EngineConfig, spec: ModelSpec, max_model_len: int) -> None:
        """Loads the weights and allocates the pool.

        Raises:
            BatonError: INVALID_ARGUMENT for an unknown dtype or device, RESOURCE_EXHAUSTED when one sequence of
                `max_model_len` does not fit into the pool.
        """
        if config.dtype not in _DTYPES:
            raise BatonError(ErrorCode.INVALID_ARGUMENT, f"--dtype: got {config.dtype}, expected one of {[*_DTYPES]}")
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        self._device = open_device(config.device)
        if self._device.type == "cpu" and not native.available():
            logger.warning("computing without the compiled CPU kernels, which is slower; see `baton doctor`")
        self.layout = KvLayout(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=config.cache.block_size,
            dtype=config.dtype,
            model_fingerprint=spec.fingerprint,
            rope_variant=spec.rope.variant(max_model_len),
        )
        self.num_blocks = _num_blocks(config, self.layout, max_model_len)
        self._model = load_model(
            spec, _DTYPES[config.dtype], self._device, max_model_len, config.load_format, config.model_impl
        )
        self.layout = msgspec.structs.replace(self.layout, order=self._model.kv_order)
        # Zeros, since masked positions are read, and a NaN times a weight of zero is still a NaN.
        self.pool = torch.zeros(
            self.num_blocks,
            spec.num_kv_heads,
            spec.num_layers,
            2,
            config.cache.block_size,
            spec.head_dim,
            dtype=_DTYPES[config.dtype],
            device=self._device,
        )
        steps = config.scheduler
        self._attention = make_attention(
            "auto", self.pool, spec.num_heads, steps.max_num_batched_tokens, steps.max_num_seqs, max_model_len
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes the planned tokens' KV into the pool and draws a token for each sequence that asks for one."""
        token_ids: list[int] = []
        positions: list[int] = []
        slices: list[SequenceSlice] = []
        sampled: list[tuple[int, Request]] = []
        prompts: list[PromptPart] = []
        for request, num_tokens, wants_token in plan.sequences:
            start = request.num_computed_tokens
            token_ids += request.tokens[start : start + num_tokens]
            positions += range(start, start + num_tokens)
            if spoken_of := request.positions_told_by(num_tokens):
                first_row = len(token_ids) - num_tokens + spoken_of.start - 1 - start
                prompts.append(PromptPart(request, spoken_of, first_row))
            slices.append(SequenceSlice(start, num_tokens, request.block_ids))
            if wants_token:
                sampled.append((len(token_ids) - 1, request))
        hidden = self._model.forward(
            torch.tensor(token_ids, device=self._device),
            torch.tensor(positions, device=self._device),
            self.pool,
            self._attention.plan(slices),
        )
        told = {part.request.key: prompt_logprobs(self._model, hidden, part) for part in prompts}
        if not sampled:
            return StepResult({}, {}, told)
        last_rows = torch.tensor([row for row, _ in sampled], device=self._device)
        drawn = _draw(self._model.logits(hidden[last_rows]), [request for _, request in sampled])
        return drawn._replace(prompt_logprobs=told)

    def clear_tail(self, block_id: int, num_tokens: int) -> None:
        """Zeroes what a partly filled block, received from a peer, holds behind its first `num_tokens` tokens."""
        self.pool[block_id, :, :, :, num_tokens:] = 0


def _num_blocks(config: EngineConfig, layout: KvLayout, max_model_len: int) -> int:
    num_blocks = config.cache.kv_cache_bytes // layout.block_bytes
    needed = math.ceil(max_model_len / layout.block_size)
    if num_blocks < needed:
        needed_mib = math.ceil(needed * layout.block_bytes / 2**20)
        raise BatonError(
            ErrorCode.RESOURCE_EXHAUSTED,
            f"--kv-cache-bytes: got {config.cache.kv_cache_bytes / 2**20:.0f} MiB, expected at least {needed_mib} MiB "
            f"to hold one sequence of {max_model_len} tokens; raise it, or lower --max-model-len",
        )
    return num_blocks


def _draw(logits: Tensor, requests: list[Request]) -> StepResult:
    batch = make_batch([_row_params(request) for request in requests], logits.shape[1], logits.device)
    drawn = sample(_with_grammars(logits, requests), batch)
    tokens = {request.key: token for request, token in zip(requests, drawn.tolist(), strict=True)}
    wanted = [row for row, request in enumerate(requests) if request.sampling.num_logprobs is not None]
    if not wanted:
        return StepResult(tokens, {})
    rows = torch.tensor(wanted, device=logits.device)
    counts = [requests[row].sampling.num_logprobs or 0 for row in wanted]
    told = token_logprobs(logits[rows], drawn[rows], counts)
    return StepResult(tokens, {requests[row].key: logprobs for row, logprobs in zip(wanted, told, strict=True)})


def _with_grammars(logits: Tensor, requests: list[Request]) -> Tensor:
    """What the grammars leave of the logits, which stay as they are: log-probabilities are the model's own."""
    allowed = {row: request.grammar.allowed for row, request in enumerate(requests) if request.grammar}
    if not allowed:
        return logits
    masked = logits.clone()
    bitmask = torch.stack([*allowed.values()]).to(logits.device, non_blocking=True)
    apply_token_bitmask(masked, bitmask, torch.tensor([*allowed], device=logits.device))
    return masked


def _row_params(request: Request) -> RowParams:
    sampling = request.sampling
    penalized = bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1)
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
        position=request.num_output_tokens,
        prompt=request.tokens[: request.num_prompt_tokens] if penalized else (),
        output=request.tokens[request.num_prompt_tokens :] if penalized else (),
    )
