"""Filter, score, pick: all choices that can work for one prompt, the best first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from baton.types import Role
from gateway.routing.base import Apart, Choice, Fleet, Local, Merit, Plan, Policy, Query

if TYPE_CHECKING:
    from gateway.worker import Worker


class _Scored(NamedTuple):
    trouble: tuple[bool, bool]
    merit: Merit
    place: int  # among the candidates: equals stay in order
    worker: Worker


def choose(policy: Policy, fleet: Fleet, query: Query) -> list[Choice]:
    """Choices, the best first; none when nothing can serve. Trouble counts before merit.

    Holds the best two of each side in every combination, not all pairs: at 32 workers a role these would be 1,024.
    Linear in the number of workers.
    """
    policy.begin(fleet, query)
    choices = [*_pairs(policy, fleet, query), *_aggregated(policy, fleet, query), *_alone(policy, fleet, query)]
    return sorted(choices, key=lambda choice: (choice.trouble, choice.merit))  # of equals, the first


def kv_formats(workers: Iterable[Worker]) -> set[tuple[int, str]]:
    """The KV formats that there are among them."""
    return {worker.record.kv_format for worker in workers}


def _pairs(policy: Policy, fleet: Fleet, query: Query) -> Iterator[Choice]:
    """Of one KV format each: others would fail once decode has reserved."""
    for kv_format in sorted(kv_formats(fleet.prefill) & kv_formats(fleet.decode)):
        prefill = _best(policy.prefill_merit, _of(fleet.prefill, kv_format), query)
        decode = _best(policy.decode_merit, _of(fleet.decode, kv_format), query)
        for first in prefill:
            for second in decode:
                cached_blocks = query.owned_blocks.get(first.worker.ref, 0)
                merit = policy.pair_merit(first.merit, second.merit)
                yield _choice(policy, Apart(first.worker, second.worker, cached_blocks), merit, query)


def _aggregated(policy: Policy, fleet: Fleet, query: Query) -> Iterator[Choice]:
    for scored in _best(policy.local_merit, fleet.aggregated, query):
        merit = policy.alone_merit(Role.AGGREGATED, scored.merit)
        yield _choice(policy, Local(scored.worker), merit, query)


def _alone(policy: Policy, fleet: Fleet, query: Query) -> Iterator[Choice]:
    """A decode worker that prefills. Formats that differ are a mistake to be told of, not to be worked around."""
    if fleet.prefill and not kv_formats(fleet.prefill) & kv_formats(fleet.decode):
        return
    for scored in _best(policy.local_merit, fleet.decode, query):
        if not fleet.prefill or not any(scored.trouble):
            merit = policy.alone_merit(Role.DECODE, scored.merit)
            yield _choice(policy, Local(scored.worker), merit, query)


def _of(workers: Sequence[Worker], kv_format: tuple[int, str]) -> list[Worker]:
    return [worker for worker in workers if worker.record.kv_format == kv_format]


def _best(merit_of: Callable[[Worker, Query], Merit], workers: Sequence[Worker], query: Query) -> list[_Scored]:
    """The best two: the one to take and the runner-up."""
    scored = [
        _Scored(query.trouble((worker,)), merit_of(worker, query), place, worker)
        for place, worker in enumerate(workers)
    ]
    return sorted(scored, key=lambda one: one[:3])[:2]


def _choice(policy: Policy, plan: Plan, merit: Merit, query: Query) -> Choice:
    return Choice(plan, query.trouble(plan.workers), merit, policy.price_s(merit))
