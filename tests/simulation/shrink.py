"""A failing schedule made short: whatever can be left out while it still fails is."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tests.simulation.schedule import Ask, Schedule

Fails = Callable[[Schedule], bool]


def shrink(schedule: Schedule, fails: Fails, most_runs: int = 300) -> Schedule:
    """The shortest that was found with so many runs; `fails` holds for it as for `schedule`."""
    runs = 0
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(schedule):
            runs += 1
            if runs > most_runs:
                return schedule
            if fails(smaller):
                schedule, improved = smaller, True
                break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Candidates, the greatest savings first."""
    for field in ("asks", "events", "faults"):
        for rest in _without_one(getattr(schedule, field)):
            if field != "asks" or rest:
                yield msgspec.structs.replace(schedule, **{field: rest})
    if any(schedule.skews_s):
        yield msgspec.structs.replace(schedule, skews_s=())
    for index, ask in enumerate(schedule.asks):
        for simpler in _simpler(ask):
            asks = (*schedule.asks[:index], simpler, *schedule.asks[index + 1 :])
            yield msgspec.structs.replace(schedule, asks=asks)


def _without_one(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    for index in range(len(items)):
        yield (*items[:index], *items[index + 1 :])


def _simpler(ask: Ask) -> Iterator[Ask]:
    if len(ask.prompt) > 1:
        yield msgspec.structs.replace(ask, prompt=ask.prompt[: len(ask.prompt) // 2])
    if ask.max_tokens > 1:
        yield msgspec.structs.replace(ask, max_tokens=ask.max_tokens // 2)
    for field, plain in (("deadline_s", None), ("leaves_after", None), ("stops_after", None), ("stop_token_ids", ())):
        if getattr(ask, field) != plain:
            yield msgspec.structs.replace(ask, **{field: plain})
