"""Which block is whose: free list, reference counts, prefix cache with LRU eviction, and quarantine."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from baton.types import BlockStats, FenceCounts


class BlockPool:
    """Bookkeeping over `num_blocks` block ids; the KV itself is elsewhere.

    A block is in one of four states: free (holds nothing of use), cached (unreferenced, but its hash can still hit; the
    oldest is evicted when free blocks run out), active (referenced), or quarantined (unreferenced, but a remote write
    may still touch it, so it is neither reused nor hit until the quarantine is lifted, or is over and nobody writes).
    """

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = enable_prefix_caching
        self._free: deque[int] = deque(range(num_blocks))
        # Oldest first. A plain dict's first key is found behind all that were taken out before it: 60 us with 52,000.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._quarantine: dict[str, tuple[int, list[int]]] = {}  # fence id -> (until unix ns, blocks)
        self._num_quarantines = self._num_confirmed = self._num_expired = self._num_held = 0
        self._stored: list[bytes] = []
        self._removed: list[bytes] = []

    @property
    def num_allocatable(self) -> int:
        """Blocks that `allocate` could give out now."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and no change) when there are not enough."""
        if count > self.num_allocatable:
            return None
        blocks = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        self._removed.append(block_hash)

    def count_hits(self, hashes: Sequence[bytes]) -> int:
        """How many leading hashes are in the cache; changes nothing."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self._block_of:
                return index
        return len(hashes)

    def take_prefix(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`, each with one more reference."""
        blocks = [self._block_of[block_hash] for block_hash in hashes[: self.count_hits(hashes)]]
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these active blocks."""
        for block in blocks:
            if self._refs[block] < 1:
                raise RuntimeError(f"block {block} is shared, but nobody holds it")
            self._refs[block] += 1

    def is_private(self, block: int) -> bool:
        """Whether a block's one holder may write into it: nobody else holds it, and nobody can find it."""
        return self._refs[block] == 1 and block not in self._hash_of

    def register(self, block: int, block_hash: bytes) -> None:
        """Makes an active, full block findable; a no-op when the same content is cached in another block already."""
        if self._caching and block_hash not in self._block_of and block not in self._hash_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block
            self._stored.append(block_hash)

    def reset_cache(self) -> int:
        """Frees every cached block, and says how many; content that somebody references stays findable."""
        blocks = list(self._cached)
        self._cached.clear()
        for block in blocks:
            self._forget(block)
        self._free.extend(blocks)
        return len(blocks)

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference of each. Given last first, a sequence's tail is evicted before its head."""
        for block in blocks:
            if self._refs[block] < 1:
                raise RuntimeError(f"block {block} is released more often than taken")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def quarantine(self, fence_id: str, blocks: Sequence[int], until_unix_ns: int) -> None:
        """Drops the only reference of `blocks`, which a remote write may touch until `until_unix_ns`."""
        for block in blocks:
            if self._refs[block] != 1 or block in self._hash_of:
                raise RuntimeError(f"block {block} is shared or cached, so no remote write can have been granted")
            self._refs[block] = 0
        self._quarantine[fence_id] = (until_unix_ns, list(blocks))
        self._num_quarantines += 1

    def lift(self, fence_id: str) -> None:
        """Frees quarantined blocks: the writer has confirmed that it has stopped. A no-op when unknown."""
        if fence_id in self._quarantine:
            self._num_confirmed += 1
            self._unfence(fence_id)

    def expire_quarantine(self, now_unix_ns: int, is_written: Callable[[str], bool]) -> None:
        """Frees the blocks whose writer's self-fence has expired, unless `is_written` says otherwise of its fence."""
        expired = [key for key, (until, _) in self._quarantine.items() if until <= now_unix_ns]
        ended = [fence_id for fence_id in expired if not is_written(fence_id)]
        for fence_id in ended:
            self._unfence(fence_id)
        self._num_expired += len(ended)
        self._num_held = len(expired) - len(ended)

    def _unfence(self, fence_id: str) -> None:
        _, blocks = self._quarantine.pop(fence_id)
        self._free.extend(blocks)

    def fences(self) -> FenceCounts:
        """Quarantines so far."""
        return FenceCounts(self._num_quarantines, self._num_confirmed, self._num_expired, self._num_held)

    def take_changes(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Hashes stored and removed since the last call; a hash that was both ends up where it is now."""
        stored, removed = self._stored, self._removed
        self._stored, self._removed = [], []
        if stored and removed:
            touched = dict.fromkeys([*stored, *removed])
            stored = [h for h in touched if h in self._block_of]
            removed = [h for h in touched if h not in self._block_of]
        return tuple(stored), tuple(removed)

    def stats(self) -> BlockStats:
        """Blocks by state."""
        quarantined = sum(len(blocks) for _, blocks in self._quarantine.values())
        free, cached = len(self._free), len(self._cached)
        active = sum(1 for refs in self._refs if refs)
        return BlockStats(self.num_blocks, free, cached, active, quarantined)

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> list[str]:
        """What is wrong, given the block lists of everybody who holds references; empty when all is well."""
        problems = []
        held = Counter(block for blocks in holders for block in blocks)
        wrong = [b for b in range(self.num_blocks) if self._refs[b] != held[b]]
        if wrong:
            shown = [(b, self._refs[b], held[b]) for b in wrong[:5]]
            problems.append(f"{len(wrong)} blocks with wrong reference counts; (block, counted, held): {shown}")
        quarantined = [b for _, blocks in self._quarantine.values() for b in blocks]
        places = Counter(
            [*self._free, *self._cached, *quarantined, *(b for b in range(self.num_blocks) if self._refs[b])]
        )
        lost = [b for b in range(self.num_blocks) if places[b] != 1]
        if lost:
            problems.append(f"{len(lost)} blocks not in exactly one state: {lost[:5]}")
        if {h: b for b, h in self._hash_of.items()} != self._block_of:
            problems.append("the two directions of the prefix cache disagree")
        if any(b not in self._hash_of for b in self._cached):
            problems.append("a block counts as cached but has no hash")
        return problems
