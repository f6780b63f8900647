"""CUDA graphs of decode steps: one launch instead of some hundred, at padded batch sizes.

A graph reads its batch from the attention backend's buffers and its tokens from one of its own, whose addresses depend
on the padded size alone. What graphs allocate while they are captured comes from one memory pool, since no two run at
once.
"""

import bisect
import logging
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_kernels.argmax import argmax
from baton_kernels.attn.paged_triton import TritonAttention
from engine.block_tables import BlockTables
from engine.drawn_tokens import DrawnTokens
from engine.graph_capture import Captured, capture_graph
from engine.models.base import Model
from engine.request import Request

logger = logging.getLogger(__name__)


class Decoded(NamedTuple):
    """What a graph leaves behind; good until the next step."""

    scores: Tensor  # [sequences, vocab] as the model's `scores`
    best: Tensor  # [sequences] int64 token of the largest one


class DecodeGraphs:
    """Captures at start, replays in steps where every sequence has one new token. On one stream: the current one."""

    def __init__(self, model: Model, attention: TritonAttention, pool: Tensor, max_seqs: int, max_blocks: int) -> None:
        """`max_blocks`: of one sequence."""
        self._model, self._attention, self._pool = model, attention, pool
        self._sizes = [size for size in (1, 2, 4) if size < max_seqs] + [*range(8, min(64, max_seqs), 8)]
        self._sizes += [*range(64, max_seqs, 16), max_seqs]
        self._tables = BlockTables(2 * max_seqs, max_blocks)
        self._token_ids = torch.zeros(max_seqs, dtype=torch.int64, device=pool.device)
        self._graphs: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self, memory: Any, stream: torch.cuda.Stream) -> None:
        """Captures all sizes, the largest first, whose `memory` the others then share."""
        start = time.perf_counter()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for size in reversed(self._sizes):
                self._graphs[size] = self._capture(size, memory)
        torch.cuda.current_stream().wait_stream(stream)
        logger.info("captured %d decode graphs in %.1f s", len(self._sizes), time.perf_counter() - start)

    def _capture(self, size: int, memory: Any) -> Captured:
        # Padded rows alone: they write no KV.
        batch = self._attention.plan_decodes(np.zeros((0, 1), np.int32), np.zeros(0, np.int32), size)

        def run() -> tuple[Tensor, Tensor]:
            hidden = self._model.forward(self._token_ids[:size], batch.positions.long(), self._pool, batch)
            scores = self._model.scores(hidden)
            return scores, argmax(scores)

        return capture_graph(run, memory)

    def run(self, requests: list[Request], drawn: DrawnTokens) -> Decoded:
        """Computes the newest token of each request, known or not; at most as many as graphs were made for."""
        count = len(requests)
        captured = self._graphs[self._sizes[bisect.bisect_left(self._sizes, count)]]
        contexts = np.fromiter((request.num_computed_tokens + 1 for request in requests), np.int32, count)
        self._attention.plan_decodes(self._tables.rows(requests), contexts, captured.best.shape[0])
        drawn.newest(requests, self._token_ids[:count])
        captured.graph.replay()
        return Decoded(captured.scores[:count], captured.best[:count])
