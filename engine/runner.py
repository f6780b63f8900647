"""Executes a step plan: builds the flattened batch, runs the model over the KV pool, draws the tokens."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

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
from engine.kv_sizing import make_sizing
from engine.logprobs import PromptPart, prompt_logprobs, token_logprobs
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.request import Key, Request
from engine.scheduler.base import BlockCopies, StepPlan
from engine.scheduler.costs import PreemptionCosts
from engine.swap_buffer import SwapBuffer

if TYPE_CHECKING:
    from engine.decode_graphs import DecodeGraphs

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
                `max_model_len` does not fit into the pool, or the pool not into the memory.
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
        self._num_heads, self._steps, self._max_model_len = spec.num_heads, config.scheduler, max_model_len
        sizing = make_sizing(config, self.layout, max_model_len, self._device)
        self._model = load_model(
            spec, _DTYPES[config.dtype], self._device, max_model_len, config.load_format, config.model_impl
        )
        self.layout = msgspec.structs.replace(self.layout, order=self._model.kv_order)
        self._graphs: DecodeGraphs | None = None
        self.num_blocks = sizing.num_blocks(self._peak_run)
        self._make_pool(self.num_blocks)
        self._swap: SwapBuffer | None = None
        self._graphs = self._capture_graphs(spec)

    def _capture_graphs(self, spec: ModelSpec) -> "DecodeGraphs | None":
        """None where steps are not captured: on a CPU, in others' code, or with experts: their work depends on data."""
        if self._device.type != "cuda" or spec.moe or not isinstance(self._model, Decoder):
            return None
        from baton_kernels.attn.paged_triton import TritonAttention
        from engine.decode_graphs import DecodeGraphs

        assert isinstance(self._attention, TritonAttention)
        self._attention.warm_up(self.pool, spec.num_heads, spec.query_scale)
        max_blocks = -(-self._max_model_len // self.layout.block_size)
        graphs = DecodeGraphs(self._model, self._attention, self.pool, self._steps.max_num_seqs, max_blocks)
        graphs.capture()
        return graphs

    def _make_pool(self, num_blocks: int) -> None:
        """A pool: zeros, since masked positions are read, and a NaN times a weight of zero is still a NaN."""
        layout, steps = self.layout, self._steps
        shape = (num_blocks, layout.num_kv_heads, layout.num_layers, 2, layout.block_size, layout.head_dim)
        self.pool = torch.zeros(shape, dtype=_DTYPES[layout.dtype], device=self._device)
        self._attention = make_attention(
            "auto", self.pool, self._num_heads, steps.max_num_batched_tokens, steps.max_num_seqs, self._max_model_len
        )

    def _peak_run(self, plan: StepPlan, num_blocks: int) -> None:
        """Executes `plan` over a pool that is there for it alone."""
        self._make_pool(num_blocks)
        self.execute(plan)
        del self.pool, self._attention

    def open_swap_space(self, num_bytes: int, costs: PreemptionCosts) -> int:
        """Allocates host memory for blocks of preempted requests, and tells `costs` what a copy takes; blocks in it."""
        self._swap = SwapBuffer(self.pool, num_bytes // self.layout.block_bytes)
        self._swap.measure(costs)
        return self._swap.num_blocks

    def swap(self, copies: BlockCopies) -> None:
        """Moves blocks between the pool and the swap space, which must be open; returns when they have moved."""
        assert self._swap is not None
        self._swap.copy(copies)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes the planned tokens' KV into the pool and draws a token for each sequence that asks for one."""
        if self._graphs and all(count == 1 and sample for _, count, sample in plan.sequences):
            requests = [request for request, _, _ in plan.sequences]
            if all(request.untold_position is None for request in requests):
                return self._decode(self._graphs, requests)
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

    def _decode(self, graphs: "DecodeGraphs", requests: list[Request]) -> StepResult:
        decoded = graphs.run(requests)
        if all(map(_is_plain, requests)):
            return StepResult({r.key: token for r, token in zip(requests, decoded.best.tolist(), strict=True)}, {})
        return _draw(decoded.logits, requests)

    def clear_tail(self, block_id: int, num_tokens: int) -> None:
        """Zeroes what a partly filled block, received from a peer, holds behind its first `num_tokens` tokens."""
        self.pool[block_id, :, :, :, num_tokens:] = 0


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


def _is_plain(request: Request) -> bool:
    """Whether the token of the largest logit is all that is wanted."""
    sampling = request.sampling
    return (
        sampling.temperature == 0
        and request.grammar is None
        and sampling.num_logprobs is None
        and not sampling.logit_bias
        and not sampling.allowed_token_ids
        and sampling.presence_penalty == sampling.frequency_penalty == 0
        and sampling.repetition_penalty == 1
        and not banned_tokens(request)
    )


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
