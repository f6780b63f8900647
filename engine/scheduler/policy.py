"""In which order requests are served: first come, first served, or by priority with aging."""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from engine.config import SchedulerConfig
from engine.request import Rank, Request


class SchedulingPolicy(ABC):
    """Ranks requests once, at their arrival; the lower rank is served first and preempted last, for good.

    That ranks never change is what makes preemption safe: the request with the lowest one always moves on, so no two
    requests can preempt each other in turns.
    """

    @abstractmethod
    def rank(self, request: Request) -> Rank:
        """Where `request`, which arrives now, stands among all others; no two ranks are equal."""


class FcfsPolicy(SchedulingPolicy):
    """First come, first served."""

    def __init__(self) -> None:
        self._arrivals = itertools.count()

    def rank(self, request: Request) -> Rank:
        return (0.0, next(self._arrivals))


class PriorityPolicy(SchedulingPolicy):
    """Lower priority values first; one that waits gains a level every `aging_s` seconds, so that none starves.

    With linear aging the order of two requests never changes, so arrival + priority x aging_s says it once and for all:
    a request of priority p is overtaken only by those that come within (p - theirs) x aging_s after it.
    """

    def __init__(self, aging_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._aging_s = aging_s
        self._clock = clock
        self._arrivals = itertools.count()

    def rank(self, request: Request) -> Rank:
        return (self._clock() + request.priority * self._aging_s, next(self._arrivals))


def make_policy(config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> SchedulingPolicy:
    """The policy that `--scheduling-policy` names."""
    return PriorityPolicy(config.priority_aging_s, clock) if config.policy == "priority" else FcfsPolicy()
