"""Taking a request's blocks away, and giving it its KV back: from host memory, or by computing it again."""

import time
from collections.abc import Callable, Sequence

from engine.request import Request
from engine.scheduler.base import BlockCopies
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.scheduler.swap_space import SwapSpace


class Preemption:
    """Swaps a preempted request's KV out when that is cheaper and fits, and drops it otherwise.

    Both ways what is in the prefix cache stays there until it is evicted, and is not copied or computed again if it is
    still there in the end. Copies are only planned here; the step that takes them does all `outs` before all `ins`, and
    both before it computes (`BlockCopies`).
    """

    def __init__(
        self,
        blocks: RequestBlocks,
        space: SwapSpace,
        costs: PreemptionCosts,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.space = space
        self.num_preemptions = 0
        self.num_swaps = 0  # of them
        self._blocks = blocks
        self._costs = costs
        self._clock_ns = clock_ns
        self._outs: list[tuple[int, int]] = []  # (device block, host block)
        self._ins: list[tuple[int, int]] = []  # (host block, device block)

    def preempt(self, request: Request) -> None:
        """Frees all its device blocks."""
        self.num_preemptions += 1
        request.preempted_unix_ns.append(self._clock_ns())
        num_tokens = request.num_computed_tokens
        used = self._blocks.blocks_for(num_tokens)
        if self._costs.prefers_swap(num_tokens, used):
            host_blocks = self.space.allocate(used)
            if host_blocks is not None:
                self._outs += zip(request.block_ids[:used], host_blocks, strict=True)
                request.host_block_ids, request.num_swapped_tokens = host_blocks, num_tokens
                self.num_swaps += 1
        request.num_lost_tokens = num_tokens
        self._blocks.release_to_next_step(request)

    def resume(self, request: Request) -> bool:
        """Gives a request that holds no device blocks its KV back as far as it is kept; False when there is no room."""
        if request.host_block_ids:
            resumed = self._swap_in(request)
        else:
            self._blocks.take_prefix(request)
            resumed = True
        if resumed and request.num_lost_tokens:
            hits = request.num_registered_blocks * self._blocks.block_size
            self._costs.observe_return(request.num_lost_tokens, max(0, request.num_lost_tokens - hits))
            request.num_lost_tokens = 0
        self._blocks.register(request)  # what is copied in can be found, since copies precede all computing
        return resumed

    def _swap_in(self, request: Request) -> bool:
        blocks, num_tokens = self._blocks, request.num_swapped_tokens
        if not blocks.take_computed(request, num_tokens):
            return False
        hits = request.num_registered_blocks
        self._ins += zip(request.host_block_ids[hits:], request.block_ids[hits:], strict=True)
        self.forget(request)
        return True

    def forget(self, request: Request) -> None:
        """Gives host blocks back; a no-op without any."""
        self.space.release(request.host_block_ids)
        request.host_block_ids = []
        request.num_swapped_tokens = 0

    def take_copies(self) -> BlockCopies:
        """What the next step has to copy; once."""
        copies = BlockCopies(outs=tuple(self._outs), ins=tuple(self._ins))
        self._outs, self._ins = [], []
        return copies

    def check_integrity(self, requests: Sequence[Request]) -> list[str]:
        """What is wrong with the host blocks; empty when all is well."""
        return self.space.check_integrity(request.host_block_ids for request in requests)
