"""Device tensors of a step's batch that stay where they are, filled by one copy of one packed host buffer a step.

Segments have fixed places, so that captured CUDA graphs find them; block tables come last and packed, one sequence's
behind the other, so that a step copies what it uses and not the longest context times the largest batch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baton_kernels.attn.base import AttentionBackend, FlatBatch, SequenceTensors, Span
from baton_kernels.attn.flat_plan import FlatPlan, Ints, pad_chunks, plan_decodes, plan_sequences

if TYPE_CHECKING:
    from baton_kernels.attention import SequenceSlice

_COPIES = 2  # host buffers: one is written while the other is still being read by the device


class BatchBuffers:
    """For one backend and one stream. Not graph-safe itself: fill between replays, on the stream that they run on."""

    def __init__(
        self,
        max_tokens: int,
        max_seqs: int,
        max_blocks_per_seq: int,
        block_size: int,
        tokens_per_tile: int,
        prompt_tokens: int,
        device: torch.device,
    ) -> None:
        """Allocates for the largest step; `tokens_per_tile` and `prompt_tokens` as in `plan_sequences`."""
        self._block_size, self._tokens_per_tile, self._prompt_tokens = block_size, tokens_per_tile, prompt_tokens
        tiles = max_tokens // tokens_per_tile + max_seqs
        self._sizes = (max_tokens,) * 2 + (max_seqs,) * 4 + (tiles,) * 2 + (max_seqs * max_blocks_per_seq,)
        self._places = [sum(self._sizes[:index]) for index in range(len(self._sizes))]
        on_gpu = device.type == "cuda"
        self._device = torch.zeros(sum(self._sizes), dtype=torch.int32, device=device)
        self._hosts = [torch.zeros(sum(self._sizes), dtype=torch.int32, pin_memory=on_gpu) for _ in range(_COPIES)]
        self._copied = [torch.cuda.Event() for _ in range(_COPIES)] if on_gpu else []
        self._turn = 0

    def fill(self, backend: AttentionBackend, sequences: "Sequence[SequenceSlice]") -> FlatBatch:
        """Any mix of sequences, laid out one behind the other; good until the next fill.

        Raises:
            ValueError: more tokens, sequences or blocks than the buffers were made for.
        """
        plan = plan_sequences(sequences, self._block_size, self._tokens_per_tile, self._prompt_tokens)
        return self._upload(backend, plan)

    def fill_decodes(self, backend: AttentionBackend, tables: Ints, contexts: Ints, padded: int) -> FlatBatch:
        """Sequences with one new token each, as `plan_decodes` takes them; what replays of a graph read.

        The same `padded` gives the same addresses and shapes, so a graph that was captured over one such batch replays
        over the next. Rows behind the sequences write no KV and attend to nothing.

        Raises:
            ValueError: more sequences or blocks than the buffers were made for.
        """
        return self._upload(backend, plan_decodes(tables, contexts, self._block_size, padded))

    def fill_chunks(
        self, backend: AttentionBackend, sequences: "Sequence[SequenceSlice]", tokens: int, seqs: int
    ) -> FlatBatch:
        """Sequences with several new tokens each, fewer than `seqs`, padded to `tokens` in all; for replays of a graph.

        The same `tokens` and `seqs` give the same addresses and shapes. Rows behind the sequences are as in
        `fill_decodes`, but what attention leaves in them is undefined.

        Raises:
            ValueError: a sequence with one token, or more than there is room for.
        """
        plan = plan_sequences(sequences, self._block_size, self._tokens_per_tile, tokens + 1)
        return self._upload(backend, pad_chunks(plan, tokens, seqs, tokens // self._tokens_per_tile + seqs))

    def _upload(self, backend: AttentionBackend, plan: FlatPlan) -> FlatBatch:
        segments = plan.segments()
        for (name, array), size in zip(segments.items(), self._sizes, strict=True):
            if len(array) > size:
                raise ValueError(f"got a batch with {len(array)} {name}, expected at most {size}; make larger buffers")
        host = self._hosts[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()
        packed = host.numpy()
        for place, array in zip(self._places, segments.values(), strict=True):
            packed[place : place + len(array)] = array
        used = self._places[-1] + len(plan.tables)
        self._device[:used].copy_(host[:used], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        self._turn = (self._turn + 1) % _COPIES
        return self._views(backend, plan)

    def _views(self, backend: AttentionBackend, plan: FlatPlan) -> FlatBatch:
        def view(index: int, begin: int, end: int) -> Tensor:
            return self._device[self._places[index] + begin : self._places[index] + end]

        tokens, seqs, tiles, decodes = len(plan.positions), len(plan.firsts), len(plan.tile_seqs), plan.num_decodes
        prompts = slice(seqs - plan.num_prompts, seqs)
        return FlatBatch(
            backend=backend,
            positions=view(0, 0, tokens),
            slots=view(1, 0, tokens),
            tables=self._device[self._places[-1] :],
            decodes=SequenceTensors(*(view(index, 0, decodes) for index in range(2, 6))),
            chunks=SequenceTensors(*(view(index, decodes, seqs) for index in range(2, 6))),
            tile_seqs=view(6, 0, tiles),
            tile_tokens=view(7, 0, tiles),
            num_chunk_tiles=plan.num_chunk_tiles,
            prompts=tuple(map(Span, plan.firsts[prompts].tolist(), plan.lengths[prompts].tolist())),
        )
