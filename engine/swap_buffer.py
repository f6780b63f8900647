"""Host memory that holds the KV blocks of preempted requests, and the copies to and from the pool."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.scheduler.base import BlockCopies
from engine.scheduler.costs import PreemptionCosts

_MEASURED_BLOCKS = 16
_BATCH_BLOCKS = 64  # bounds the gathered copy in between, which is on the device


class SwapBuffer:
    """`num_blocks` blocks, shaped as the pool's; pinned where the pool is on a GPU."""

    def __init__(self, pool: Tensor, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._pool = pool
        self._host = torch.empty((num_blocks, *pool.shape[1:]), dtype=pool.dtype, pin_memory=pool.is_cuda)

    def copy(self, copies: BlockCopies) -> None:
        """Makes `copies`, and returns when they are made."""
        _copy(self._pool, self._host, copies.outs)
        _copy(self._pool, self._pool, copies.within)
        _copy(self._host, self._pool, copies.ins)

    def measure(self, costs: PreemptionCosts) -> None:
        """Copies some unused blocks both ways, the second time against the clock; for before the first step."""
        pairs = tuple((block, block) for block in range(min(_MEASURED_BLOCKS, self.num_blocks, self._pool.shape[0])))
        if not pairs:
            return
        self.copy(BlockCopies(outs=pairs, ins=pairs))  # the first touch of fresh memory is slower than any later one
        start_s = time.perf_counter()
        self.copy(BlockCopies(outs=pairs, ins=pairs))
        costs.observe_copy(2 * len(pairs), time.perf_counter() - start_s)


def _copy(source: Tensor, target: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    for start in range(0, len(pairs), _BATCH_BLOCKS):
        src, dst = zip(*pairs[start : start + _BATCH_BLOCKS], strict=True)
        gathered = source.index_select(0, torch.tensor(src, device=source.device)).to(target.device)
        target.index_copy_(0, torch.tensor(dst, device=target.device), gathered)
    if pairs and target.is_cuda:
        torch.cuda.synchronize(target.device)
