"""Block ids of running sequences, kept between steps as rows of one array."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.request import Key, Request

_Holding = tuple[Key, int]  # a request, and how often it has lost its blocks


class BlockTables:
    """Rows are extended as sequences grow, instead of made in every step."""

    def __init__(self, max_seqs: int, max_blocks: int) -> None:
        self._table = np.zeros((max_seqs, max_blocks), np.int32)
        self._rows: dict[_Holding, tuple[int, int]] = {}  # row, blocks in it
        self._free = list(range(max_seqs))

    def rows(self, requests: Sequence[Request]) -> npt.NDArray[np.int32]:
        """[requests, blocks] block ids; what stands behind a request's last block means nothing.

        A request's blocks change only by more behind them, or all at once by a preemption. Rows of requests that are
        not in the batch are dropped when room is needed.
        """
        keys = [(request.key, len(request.preempted_unix_ns)) for request in requests]
        if sum(key not in self._rows for key in keys) > len(self._free):
            self._drop_all_but(set(keys))
        picked = []
        for key, request in zip(keys, requests, strict=True):
            row, known = self._rows.get(key) or (self._free.pop(), 0)
            blocks = request.block_ids
            if len(blocks) != known:
                self._table[row, : len(blocks)] = blocks
                self._rows[key] = row, len(blocks)
            picked.append(row)
        width = max((len(request.block_ids) for request in requests), default=0)
        return self._table[:, :width][picked]

    def _drop_all_but(self, keys: set[_Holding]) -> None:
        for key in [key for key in self._rows if key not in keys]:
            self._free.append(self._rows.pop(key)[0])
