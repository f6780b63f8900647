"""CUDA graphs of steps that compute prompts alone: for models that the GPU runs faster than the host can launch them.

Such a step has some hundred launches, 10 to 15 us each. Where the device takes longer than that, they are hidden
behind the step before, and a graph would only compute padding.
"""

import bisect
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from baton_kernels.argmax import argmax
from baton_kernels.attention import SequenceSlice
from baton_kernels.attn.paged_triton import TritonAttention
from engine.decode_graphs import Decoded
from engine.graph_capture import Captured, capture_graph
from engine.models.base import Model
from engine.request import Request
from engine.scheduler.base import SequencePlan
from engine.upload import upload

logger = logging.getLogger(__name__)

_SIZES = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)  # tokens
_SEQS = 9  # one of them padding
_HIDDEN_MS = 9.0  # from here on launches are hidden: about what they take


class PromptGraphs:
    """Captures at start, replays in steps of few sequences that all have several new tokens. On the current stream."""

    def __init__(self, model: Model, attention: TritonAttention, pool: Tensor, max_tokens: int, max_seqs: int) -> None:
        """`max_tokens` and `max_seqs` of a step."""
        self._model, self._attention, self._pool = model, attention, pool
        self._sizes = [size for size in _SIZES if size <= max_tokens]
        self._seqs = min(_SEQS, max_seqs)
        self._token_ids = torch.zeros(max(self._sizes, default=0), dtype=torch.int64, device=pool.device)
        self._last_rows = torch.zeros(self._seqs, dtype=torch.int64, device=pool.device)
        self._graphs: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self, memory: Any, stream: torch.cuda.Stream) -> None:
        """Captures sizes as long as a step is shorter than its launches; `memory` is shared with other graphs."""
        start = time.perf_counter()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for size in self._sizes:
                self._graphs[size] = self._capture(size, memory)
                if _replay_ms(self._graphs[size].graph) > _HIDDEN_MS:
                    break
        self._sizes = [*self._graphs]
        torch.cuda.current_stream().wait_stream(stream)
        logger.info("captured %d prompt graphs in %.1f s", len(self._sizes), time.perf_counter() - start)

    def _capture(self, size: int, memory: Any) -> Captured:
        batch = self._attention.plan_chunks([], size, self._seqs)  # padding alone: it writes no KV

        def run() -> tuple[Tensor, Tensor]:
            hidden = self._model.forward(self._token_ids[:size], batch.positions.long(), self._pool, batch)
            scores = self._model.scores(hidden[self._last_rows])
            return scores, argmax(scores)

        return capture_graph(run, memory)

    def serves(self, sequences: Sequence[SequencePlan]) -> bool:
        """Whether a step is small enough, and of prompts whose tokens are known and not to be told of."""
        if not self._sizes or not 0 < len(sequences) < self._seqs:
            return False
        return sum(sequence.num_tokens for sequence in sequences) <= self._sizes[-1] and all(
            num_tokens > 1
            and request.num_computed_tokens + num_tokens <= len(request.tokens)
            and request.untold_position is None
            for request, num_tokens, _ in sequences
        )

    def run(self, sequences: Sequence[SequencePlan]) -> tuple[list[Request], Decoded]:
        """Computes a step that is served; the requests that draw, and what they draw from."""
        token_ids: list[int] = []
        slices, drawing, last_rows = [], [], []
        for request, num_tokens, sample in sequences:
            start = request.num_computed_tokens
            token_ids += itertools.islice(request.tokens, start, start + num_tokens)
            slices.append(SequenceSlice(start, num_tokens, request.block_ids))
            if sample:
                drawing.append(request)
                last_rows.append(len(token_ids) - 1)
        size = self._sizes[bisect.bisect_left(self._sizes, len(token_ids))]
        device, captured = self._pool.device, self._graphs[size]
        self._attention.plan_chunks(slices, size, self._seqs)
        self._token_ids[: len(token_ids)] = upload(token_ids, device)
        self._last_rows[: len(last_rows)] = upload(last_rows, device)
        captured.graph.replay()
        return drawing, Decoded(captured.scores[: len(drawing)], captured.best[: len(drawing)])


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """How long the device takes for a graph, once."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
