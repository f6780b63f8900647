"""What routing decides about: a fleet and a query in, choices with a rank out; and the seam for policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from baton.types import Role, WorkerRef

if TYPE_CHECKING:
    from gateway.routing.claim import Claim
    from gateway.worker import Worker  # imports gRPC, which a decision has no need of


class Apart(NamedTuple):
    """Prefill on one worker, decode on another."""

    prefill: Worker
    decode: Worker
    cached_blocks: int  # leading prompt blocks that the prefill worker owns

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that the plan occupies."""
        return self.prefill, self.decode


class Local(NamedTuple):
    """Both on one worker."""

    worker: Worker

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that the plan occupies."""
        return (self.worker,)


Plan = Apart | Local


class Query(NamedTuple):
    """One prompt."""

    num_tokens: int
    owned_blocks: Mapping[WorkerRef, int]  # leading prompt blocks, of those workers that own any
    last_resort: Collection[WorkerRef] = ()  # have refused or failed the request

    def cached_tokens(self, worker: Worker) -> int:
        """What the worker need not compute; the last token is always computed."""
        owned = self.owned_blocks.get(worker.ref, 0) * worker.record.block_size
        return max(0, min(owned, self.num_tokens - 1))

    def uncached_tokens(self, worker: Worker) -> int:
        """What the worker would compute."""
        return self.num_tokens - self.cached_tokens(worker)

    def trouble(self, workers: Iterable[Worker]) -> tuple[bool, bool]:
        """Whether one is a last resort, and whether one is out of reach or drains. More is worse."""
        workers = tuple(workers)
        return any(worker.ref in self.last_resort for worker in workers), any(worker.avoided for worker in workers)


class Fleet(NamedTuple):
    """All registered workers, each role always in the same order."""

    prefill: Sequence[Worker]
    decode: Sequence[Worker]
    aggregated: Sequence[Worker]


class Choice(NamedTuple):
    """A plan that would work, and how it compares."""

    plan: Plan
    trouble: tuple[bool, bool]
    merit: tuple[float, ...]  # less is better; of one policy, choices of all shapes compare
    price_s: float | None  # what the policy expects it to cost, where it prices in seconds


Merit = tuple[float, ...]


class Policy(ABC):
    """How workers compare. Each method is called for every candidate of a decision, on one thread, and must not wait.

    A pair is judged by its two halves on their own, so that a decision looks at each worker once and not at each pair.
    """

    @abstractmethod
    def begin(self, fleet: Fleet, query: Query) -> None:
        """A decision begins."""

    @abstractmethod
    def prefill_merit(self, worker: Worker, query: Query) -> Merit:
        """Of a prefill worker that computes the prompt. Less is better."""

    @abstractmethod
    def decode_merit(self, worker: Worker, query: Query) -> Merit:
        """Of a decode worker that continues what another one has computed."""

    @abstractmethod
    def local_merit(self, worker: Worker, query: Query) -> Merit:
        """Of a worker that does both."""

    def pair_merit(self, prefill: Merit, decode: Merit) -> Merit:
        """Of a pair, before that of one worker."""
        return 0.0, *prefill, *decode

    def alone_merit(self, role: Role, local: Merit) -> Merit:
        """Of one worker, behind that of a pair; an aggregated one before a decode worker that prefills."""
        return 1.0 if role is Role.AGGREGATED else 2.0, *local

    def price_s(self, merit: Merit) -> float | None:
        """Of a choice's merit, in seconds; None where the policy does not price."""
        return None

    def take(self, choice: Choice, query: Query) -> Claim | None:
        """The request goes there. What follows it through its life, where the policy wants to learn from it."""
        return None
