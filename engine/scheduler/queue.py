"""Waiting requests in the order of their ranks."""

import bisect
from collections.abc import Iterator

from engine.request import Key, Rank, Request


class RankedQueue:
    """Sorted as requests come, so that a step looks at the first one only."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []  # ascending; no two are equal
        self._requests: list[Request] = []  # the same order
        self._by_key: dict[Key, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request | None:
        """The one to be served next."""
        return self._requests[0] if self._requests else None

    def get(self, key: Key) -> Request | None:
        """The request of that key; None when it does not wait here."""
        return self._by_key.get(key)

    def push(self, request: Request) -> None:
        """Puts a ranked request in its place."""
        index = bisect.bisect(self._ranks, request.rank)
        self._ranks.insert(index, request.rank)
        self._requests.insert(index, request)
        self._by_key[request.key] = request

    def remove(self, key: Key) -> Request | None:
        """Takes a request out; None when it does not wait here."""
        request = self._by_key.pop(key, None)
        if request:
            index = bisect.bisect_left(self._ranks, request.rank)
            del self._ranks[index], self._requests[index]
        return request
