"""Lays sequences out as the flat arrays that GPU kernels take, on the host, with a few vectorised operations."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from baton_kernels.attention import SequenceSlice

Ints = npt.NDArray[np.int32]


class FlatPlan(NamedTuple):
    """int32 arrays; sequences stand in the order decodes, chunks, prompts. As in `base.FlatBatch`."""

    positions: Ints  # [tokens]
    slots: Ints  # [tokens]
    firsts: Ints  # [seqs]
    lengths: Ints  # [seqs]
    contexts: Ints  # [seqs]
    table_starts: Ints  # [seqs]
    tile_seqs: Ints  # [tiles]
    tile_tokens: Ints  # [tiles]
    tables: Ints  # [entries]
    num_decodes: int
    num_chunk_tiles: int
    num_prompts: int

    def segments(self) -> dict[str, Ints]:
        """What goes to the device, by name; tables last."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, np.ndarray)}


def plan_sequences(
    sequences: "Sequence[SequenceSlice]", block_size: int, tokens_per_tile: int, prompt_tokens: int
) -> FlatPlan:
    """Any mix of sequences.

    Args:
        tokens_per_tile: new tokens that a program of the prefill kernel takes
        prompt_tokens: from how many tokens on a sequence without anything before it counts as a prompt
    """
    count = len(sequences)
    starts = np.fromiter((seq.start for seq in sequences), np.int32, count)
    lengths = np.fromiter((seq.num_tokens for seq in sequences), np.int32, count)
    firsts = _offsets(lengths)
    contexts = starts + lengths
    used = -(-contexts // block_size)
    table_starts = _offsets(used)
    tables = np.fromiter(
        chain.from_iterable(seq.block_ids[:blocks] for seq, blocks in zip(sequences, used.tolist(), strict=True)),
        np.int32,
    )
    positions = np.arange(lengths.sum(), dtype=np.int32) - np.repeat(firsts - starts, lengths)
    blocks = tables[np.repeat(table_starts, lengths) + positions // block_size]
    kind = np.where(lengths == 1, 0, np.where((starts == 0) & (lengths >= prompt_tokens), 2, 1))
    order = np.argsort(kind, kind="stable")
    num_decodes, num_prompts = int((kind == 0).sum()), int((kind == 2).sum())
    firsts, lengths, contexts = firsts[order], lengths[order], contexts[order]
    tiles = _tiles(lengths[num_decodes:], contexts[num_decodes:], num_prompts, tokens_per_tile)
    return FlatPlan(
        positions,
        blocks * block_size + positions % block_size,
        firsts,
        lengths,
        contexts,
        table_starts[order],
        *tiles[:2],
        tables,
        num_decodes,
        tiles[2],
        num_prompts,
    )


def plan_decodes(tables: Ints, contexts: Ints, block_size: int, padded: int) -> FlatPlan:
    """Sequences with one new token each, their block ids in rows of a table that its owner keeps up to date.

    Args:
        tables: [at least seqs, blocks] block ids
        contexts: [seqs] tokens attended to, the new one included
        padded: rows of the result, at least seqs; those behind have no context and no slot
    """
    count = len(contexts)
    used = -(-contexts // block_size)
    columns = np.arange(used.max(initial=0))
    entries = tables[:count, : len(columns)][columns[None, :] < used[:, None]]
    positions, slots, table_starts, lengths, attended = (np.zeros(padded, np.int32) for _ in range(5))
    positions[:count] = contexts - 1
    last = tables[np.arange(count), positions[:count] // block_size]
    slots[:count] = last * block_size + positions[:count] % block_size
    slots[count:] = -1
    table_starts[:count] = _offsets(used)
    lengths[:count], attended[:count] = 1, contexts
    none = np.zeros(0, np.int32)
    rows = np.arange(padded, dtype=np.int32)
    return FlatPlan(positions, slots, rows, lengths, attended, table_starts, none, none, entries, padded, 0, 0)


def pad_chunks(plan: FlatPlan, tokens: int, seqs: int, tiles: int) -> FlatPlan:
    """`plan`, of chunks alone, with as many tokens, sequences and tiles; what is added writes and attends to nothing.

    Args:
        seqs: more than the plan's, since tiles that are added belong to one that is added
    """

    def padded(array: Ints, size: int, value: int = 0) -> Ints:
        return np.concatenate([array, np.full(size - len(array), value, np.int32)])

    if plan.num_decodes or plan.num_prompts or len(plan.firsts) >= seqs:
        raise ValueError(f"got {len(plan.firsts)} sequences to pad, expected fewer than {seqs}, and chunks alone")
    return plan._replace(
        positions=padded(plan.positions, tokens),
        slots=padded(plan.slots, tokens, -1),
        firsts=padded(plan.firsts, seqs),
        lengths=padded(plan.lengths, seqs),
        contexts=padded(plan.contexts, seqs),
        table_starts=padded(plan.table_starts, seqs),
        tile_seqs=padded(plan.tile_seqs, tiles, seqs - 1),
        tile_tokens=padded(plan.tile_tokens, tiles),
        num_chunk_tiles=tiles,
    )


def _offsets(counts: Ints) -> Ints:
    """[n] where each of n runs begins."""
    return (np.cumsum(counts) - counts).astype(np.int32)


def _tiles(lengths: Ints, contexts: Ints, num_prompts: int, tokens_per_tile: int) -> tuple[Ints, Ints, int]:
    """Sequence and first token of each tile, and how many are not of prompts; those stand in front.

    Within both parts the longest walks come first, so that the last programs to start are short.
    """
    counts = -(-lengths // tokens_per_tile)
    seqs = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    tokens = (np.arange(len(seqs)) - np.repeat(_offsets(counts), counts)) * tokens_per_tile
    walks = (contexts - lengths)[seqs] + tokens
    prompt = seqs >= len(lengths) - num_prompts
    order = np.lexsort((-walks, prompt))
    return seqs[order], tokens[order].astype(np.int32), int((~prompt).sum())
