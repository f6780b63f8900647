"""Which block of the host memory for preempted requests is whose."""

from collections import Counter
from collections.abc import Iterable, Sequence


class SwapSpace:
    """Bookkeeping over `num_blocks` host blocks, each free or held by one request; the KV itself is elsewhere."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))

    @property
    def num_used(self) -> int:
        """Blocks that hold a preempted request's KV."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and no change) when there are not enough."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: Iterable[int]) -> None:
        """Gives blocks back."""
        self._free.extend(blocks)

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> list[str]:
        """What is wrong, given the block lists of all who hold some; empty when all is well."""
        places = Counter(self._free)
        for blocks in holders:
            places.update(blocks)
        wrong = [block for block in range(self.num_blocks) if places[block] != 1]
        if not wrong:
            return []
        return [f"{len(wrong)} host blocks not in exactly one place: {wrong[:5]}"]
