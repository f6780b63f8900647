"""Who owns which block, in memory: a hash's owners are the bits of one number."""

from collections.abc import Iterable, Sequence

from baton.types import WorkerRef

MAX_HASHES = 8_000_000  # about 1.2 GB; what comes beyond counts as a miss
_MAX_MASKS = 65_536


class OwnerIndex:
    """Owners take slots, one bit each. Nothing is done to all hashes at once, since that would hold its thread up.

    So an owner that is forgotten leaves its bits behind, in a slot that nobody asks about, until `sweep` is through.
    """

    def __init__(self, max_hashes: int = MAX_HASHES) -> None:
        self._max_hashes = max_hashes
        self._owners: dict[bytes, int] = {}
        self._masks: dict[int, int] = {}  # equal numbers are one object
        self._slots: dict[WorkerRef, int] = {}
        self._num_slots = 0
        self._free: list[int] = []
        self._left = 0  # bits of owners that were forgotten since the sweep under way began
        self._swept = 0  # bits that it takes out
        self._to_sweep: list[bytes] = []
        self.num_refused = 0  # hashes, for lack of room

    def __len__(self) -> int:
        return len(self._owners)

    def change(self, worker: WorkerRef, removed: Iterable[bytes], stored: Iterable[bytes]) -> None:
        """A hash in both counts as stored."""
        bit, owners, masks = self._bit(worker), self._owners, self._masks
        for key in removed:
            mask = owners.get(key, 0)
            if mask & bit:
                self._set(key, mask ^ bit)
        for key in stored:
            mask = owners.get(key, 0)
            if not mask and len(owners) >= self._max_hashes:
                self.num_refused += 1
                continue
            owners[key] = masks.setdefault(mask | bit, mask | bit)
        if len(masks) > _MAX_MASKS:
            masks.clear()

    def forget(self, worker: WorkerRef) -> None:
        """It owns nothing any more. Idempotent."""
        slot = self._slots.pop(worker, None)
        if slot is not None:
            self._left |= 1 << slot

    def sweep(self, max_hashes: int = 20_000) -> None:
        """Takes some of what forgotten owners have left out of memory: a few milliseconds."""
        if not self._to_sweep:
            if not self._left:
                return
            self._to_sweep, self._swept, self._left = list(self._owners), self._left, 0
        some, self._to_sweep = self._to_sweep[-max_hashes:], self._to_sweep[:-max_hashes]
        for key in some:
            mask = self._owners.get(key, 0)
            if mask & self._swept:
                self._set(key, mask & ~self._swept)
        if not self._to_sweep:
            self._free += [slot for slot in range(self._num_slots) if self._swept >> slot & 1]
            self._swept = 0

    def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        """For each worker how many of the leading `hashes` it owns."""
        found = dict.fromkeys(workers, 0)
        by_bit = {1 << self._slots[worker]: worker for worker in workers if worker in self._slots}
        alive = 0
        for bit in by_bit:
            alive |= bit
        owners = self._owners
        for index, key in enumerate(hashes):
            mask = owners.get(key, 0) & alive
            if mask != alive:
                _end(found, by_bit, alive ^ mask, index)
                alive = mask
                if not alive:
                    return found
        _end(found, by_bit, alive, len(hashes))
        return found

    def _set(self, key: bytes, mask: int) -> None:
        if mask:
            self._owners[key] = self._masks.setdefault(mask, mask)
        else:
            del self._owners[key]

    def _bit(self, worker: WorkerRef) -> int:
        slot = self._slots.get(worker)
        if slot is None:
            if not self._free:
                self._free.append(self._num_slots)
                self._num_slots += 1
            slot = self._slots[worker] = self._free.pop()
        return 1 << slot


def _end(found: dict[WorkerRef, int], by_bit: dict[int, WorkerRef], lost: int, count: int) -> None:
    while lost:
        bit = lost & -lost
        found[by_bit[bit]] = count
        lost ^= bit
