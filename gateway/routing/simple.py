"""Policies that compare without a model of costs: by prefix, by load, in turns, by chance."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import TYPE_CHECKING

from baton.types import WorkerRef
from gateway.routing.base import Choice, Fleet, Merit, Policy, Query

if TYPE_CHECKING:
    from gateway.worker import Worker


class _Uniform(Policy):
    """The same merit for every part of the work."""

    def begin(self, fleet: Fleet, query: Query) -> None:
        return

    @abstractmethod
    def _merit(self, worker: Worker, query: Query) -> Merit: ...

    def prefill_merit(self, worker: Worker, query: Query) -> Merit:
        return self._merit(worker, query)

    def decode_merit(self, worker: Worker, query: Query) -> Merit:
        return self._merit(worker, query)

    def local_merit(self, worker: Worker, query: Query) -> Merit:
        return self._merit(worker, query)


class LeastLoaded(_Uniform):
    """Fewest requests of this gateway."""

    def _merit(self, worker: Worker, query: Query) -> Merit:
        return (float(worker.in_flight),)


class Prefix(_Uniform):
    """Most of the prefix owned, in tokens, since blocks differ in size; of equals, the least load."""

    def _merit(self, worker: Worker, query: Query) -> Merit:
        owned_tokens = query.owned_blocks.get(worker.ref, 0) * worker.record.block_size
        return -float(owned_tokens), float(worker.in_flight)


class RoundRobin(_Uniform):
    """Whoever was taken the longest ago."""

    def __init__(self) -> None:
        self._turn = 0
        self._taken: dict[WorkerRef, int] = {}

    def begin(self, fleet: Fleet, query: Query) -> None:
        self._turn += 1
        if len(self._taken) > 2 * sum(map(len, fleet)) + 8:  # of workers that have left
            here = {worker.ref for role in fleet for worker in role}
            self._taken = {ref: turn for ref, turn in self._taken.items() if ref in here}

    def _merit(self, worker: Worker, query: Query) -> Merit:
        return (float(self._taken.get(worker.ref, 0)),)

    def take(self, choice: Choice, query: Query) -> None:
        self._taken.update((worker.ref, self._turn) for worker in choice.plan.workers)


class Random(_Uniform):
    """By chance."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def _merit(self, worker: Worker, query: Query) -> Merit:
        return (self._random.random(),)
