"""Executes a step plan: builds the flattened batch, runs the model over the KV pool, draws the tokens."""

import logging
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from baton.types import KvLayout
from baton_kernels import native
from baton_kernels.argmax import argmax
from baton_kernels.attention import SequenceSlice
from baton_kernels.attn.registry import make_attention
from engine.config import EngineConfig
from engine.device import open_device
from engine.drawn_tokens import DrawnTokens
from engine.kv_sizing import make_sizing
from engine.logprobs import LogprobsOnTheWay, PromptPart, prompt_logprobs
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.request import Request
from engine.scheduler.base import BlockCopies, StepPlan
from engine.scheduler.costs import PreemptionCosts
from engine.step_in_flight import StepInFlight, StepResult
from engine.step_sampler import StepSampler
from engine.swap_buffer import SwapBuffer
from engine.upload import upload

if TYPE_CHECKING:
    from engine.decode_graphs import DecodeGraphs
    from engine.prompt_graphs import PromptGraphs

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
        if self._device.type == "cuda":
            self._capture_stream = torch.cuda.Stream(self._device)
        self._graphs: DecodeGraphs | None = None
        self._prompt_graphs: PromptGraphs | None = None
        self._drawn = DrawnTokens(config.scheduler.max_num_seqs, self._device)
        self._sampler = StepSampler(self._device)
        self.num_blocks = sizing.num_blocks(self._peak_run)
        self._make_pool(self.num_blocks)
        self._swap: SwapBuffer | None = None
        if self._device.type == "cuda" and not spec.moe and isinstance(self._model, Decoder):
            self._capture_graphs(self._model, spec)

    def _capture_graphs(self, model: Decoder, spec: ModelSpec) -> None:
        """Not on a CPU, not of others' code, and not with experts, whose work depends on data."""
        from baton_kernels.attn.paged_triton import TritonAttention
        from engine.decode_graphs import DecodeGraphs
        from engine.prompt_graphs import PromptGraphs

        assert isinstance(self._attention, TritonAttention)
        self._attention.warm_up(self.pool, spec.num_heads, spec.query_scale)
        max_blocks, steps = -(-self._max_model_len // self.layout.block_size), self._steps
        self._graphs = DecodeGraphs(model, self._attention, self.pool, steps.max_num_seqs, max_blocks)
        self._prompt_graphs = PromptGraphs(
            model, self._attention, self.pool, steps.max_num_batched_tokens, steps.max_num_seqs
        )
        memory = torch.cuda.graph_pool_handle()
        self._graphs.capture(memory, self._capture_stream)
        self._prompt_graphs.capture(memory, self._capture_stream)

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
        if self._device.type == "cuda":  # cuBLAS keeps a workspace for each stream
            with torch.cuda.stream(self._capture_stream):
                F.linear(*torch.ones(2, 64, 64, dtype=_DTYPES[self.layout.dtype], device=self._device))
        self.execute(plan)
        del self.pool, self._attention

    @property
    def on_gpu(self) -> bool:
        """Whether `launch` returns before the step has ended."""
        return self._device.type == "cuda"

    def open_swap_space(self, num_bytes: int, costs: PreemptionCosts) -> int:
        """Allocates host memory for blocks of preempted requests, and tells `costs` what a copy takes; blocks in it."""
        self._swap = SwapBuffer(self.pool, num_bytes // self.layout.block_bytes)
        self._swap.measure(costs)
        return self._swap.num_blocks

    def copy_blocks(self, copies: BlockCopies) -> None:
        """Copies blocks between the pool and the swap space, which must be open, and within the pool; returns then."""
        assert self._swap is not None
        self._swap.copy(copies)

    def execute(self, plan: StepPlan) -> StepResult:
        """`launch`, and waits for its end."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepInFlight:
        """Enqueues a step: the planned tokens' KV goes into the pool, and a token is drawn for each that asks for one.

        A step before it may still be in flight: where a request's newest token is not known, it is that one's draw.
        """
        if self._graphs and all(count == 1 and sample for _, count, sample in plan.sequences):
            requests = [request for request, _, _ in plan.sequences]
            if all(request.untold_position is None for request in requests):
                scores, best = self._graphs.run(requests, self._drawn)
                return self._draw(scores, requests, [], best)
        if self._prompt_graphs and self._prompt_graphs.serves(plan.sequences):
            requests, (scores, best) = self._prompt_graphs.run(plan.sequences)
            return self._draw(scores, requests, [], best) if requests else self._nothing_drawn([])
        token_ids: list[int] = []
        positions = []
        slices: list[SequenceSlice] = []
        sampled: list[tuple[int, Request]] = []
        prompts: list[PromptPart] = []
        late: list[tuple[int, Request]] = []
        for request, num_tokens, wants_token in plan.sequences:
            start = request.num_computed_tokens
            known = request.tokens[start : start + num_tokens]
            token_ids += known
            positions.append(np.arange(start, start + num_tokens))
            if len(known) < num_tokens:
                late.append((len(token_ids), request))
                token_ids.append(0)
            if spoken_of := request.positions_told_by(num_tokens):
                first_row = len(token_ids) - num_tokens + spoken_of.start - 1 - start
                prompts.append(PromptPart(request, spoken_of, first_row))
            slices.append(SequenceSlice(start, num_tokens, request.block_ids))
            if wants_token:
                sampled.append((len(token_ids) - 1, request))
        tokens = upload(token_ids, self._device)
        self._drawn.insert(late, tokens)
        at = upload(np.concatenate(positions), self._device)
        hidden = self._model.forward(tokens, at, self.pool, self._attention.plan(slices))
        told = [(part, prompt_logprobs(self._model, hidden, part)) for part in prompts]
        if not sampled:
            return self._nothing_drawn(told)
        last_rows = upload([row for row, _ in sampled], self._device)
        return self._draw(self._model.scores(hidden[last_rows]), [request for _, request in sampled], told)

    def _nothing_drawn(self, told: list[tuple[PromptPart, list[LogprobsOnTheWay]]]) -> StepInFlight:
        return StepInFlight([], self._drawn.nothing(), None, told)

    def _draw(
        self,
        scores: Tensor,
        requests: list[Request],
        told: list[tuple[PromptPart, list[LogprobsOnTheWay]]],
        best: Tensor | None = None,
    ) -> StepInFlight:
        sampler = self._sampler
        sampler.take(requests, scores.shape[1])
        if sampler.wants_logits:
            logits = self._model.as_logits(scores)
            drawn = sampler.draw(logits)
            logprobs = sampler.logprobs(logits, drawn) if sampler.wants_logprobs else None
        else:
            drawn, logprobs = argmax(scores) if best is None else best, None
        return StepInFlight(requests, self._drawn.keep(drawn, requests), logprobs, told)

    def clear_tail(self, block_id: int, num_tokens: int) -> None:
        """Zeroes what a partly filled block, received from a peer, holds behind its first `num_tokens` tokens."""
        self.pool[block_id, :, :, :, num_tokens:] = 0
