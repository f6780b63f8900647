"""Who owns which block: stands for what workers write into Redis and gateways read."""

from collections.abc import Iterable, Sequence
from typing import Any

from baton.types import WorkerRef


class Directory:
    """By key: the number of its owner, or a set of them where there are several (which costs memory, so not always)."""

    def __init__(self) -> None:
        self.workers: list[WorkerRef] = []
        self._owners: dict[Any, int | set[int]] = {}
        self._gone: set[int] = set()
        self.is_read = True  # else nothing is kept

    def __len__(self) -> int:
        return len(self._owners)

    def add_worker(self, worker: WorkerRef) -> int:
        """Its number."""
        self.workers.append(worker)
        return len(self.workers) - 1

    def remove_worker(self, number: int) -> None:
        """What it owned is not found any more."""
        self._gone.add(number)

    def change(self, number: int, stored: Iterable[Any], removed: Iterable[Any]) -> None:
        """What a core's `CacheChanged` says."""
        if not self.is_read:
            return
        owners = self._owners
        for key in removed:
            found = owners.get(key)
            if isinstance(found, set):
                found.discard(number)
                if len(found) == 1:
                    owners[key] = found.pop()
            elif found == number:
                del owners[key]
        for key in stored:
            found = owners.setdefault(key, number)
            if isinstance(found, set):
                found.add(number)
            elif found != number:
                owners[key] = {found, number}

    def longest_prefixes(self, keys: Sequence[Any]) -> dict[int, int]:
        """How many leading blocks each worker owns, of those that own any."""
        found: dict[int, int] = {}
        alive: set[int] | None = None
        for index, key in enumerate(keys):
            owners = self._owners.get(key)
            here = owners if isinstance(owners, set) else () if owners is None else (owners,)
            left = {number for number in here if alive is None or number in alive}
            for number in (alive or set()) - left:
                found[number] = index
            alive = left
            if not alive:
                break
        for number in alive or ():
            found[number] = len(keys)
        for number in self._gone & found.keys():
            del found[number]
        return found
