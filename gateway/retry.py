"""Whether and when a failed request is tried again: limits for one request, and a budget for all of them."""

import logging
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from baton.errors import BatonError, ErrorCode, Reason
from baton.types import WorkerRef
from gateway.worker_errors import WorkerFailure

logger = logging.getLogger(__name__)

# NOT_FOUND: a grant that its decode worker does not know (any more).
_RETRYABLE = (ErrorCode.UNAVAILABLE, ErrorCode.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits."""

    max_attempts: int = 3  # of one request; the gateway's --max-attempts
    max_deaths: int = 2  # workers that may die at work on one request, before it counts as what kills them
    backoff_s: float = 0.1  # at most this before the second retry, then twice as much each time; the first is at once
    budget_per_request: float = 0.1  # retries that each request allows to all of them
    # What may be retried all the same: a worker dies with up to --max-num-seqs (64) requests and those that wait.
    budget_floor: int = 100
    budget_floor_refill_per_s: float = 1.0


class RetryBudget:
    """A token bucket over all requests of one gateway, so that retries cannot multiply the load of an outage.

    After Finagle's `RetryBudget` and gRFC A6: each request deposits a fraction of a retry, each retry takes one, and a
    small allowance by time keeps a quiet gateway able to retry.
    """

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._balance = float(policy.budget_floor)
        self._refilled_s = clock()

    def count_request(self) -> None:
        """A request begins."""
        self._balance = min(self._balance + self._policy.budget_per_request, 2.0 * self._policy.budget_floor)

    def take(self) -> bool:
        """Takes one retry out; False when there is none."""
        now_s = self._clock()
        if self._balance < self._policy.budget_floor:
            earned = (now_s - self._refilled_s) * self._policy.budget_floor_refill_per_s
            self._balance = min(self._balance + earned, float(self._policy.budget_floor))
        self._refilled_s = now_s
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


class Recovery:
    """The failures of one request so far, and what follows from each."""

    def __init__(
        self, policy: RetryPolicy, budget: RetryBudget, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._uniform = uniform
        self._num_attempts = 0  # that count
        self._died: set[WorkerRef] = set()
        self.last: BatonError | None = None
        self.failed: set[WorkerRef] = set()  # workers to be taken only when there is no other

    def after(self, error: BatonError, workers: Collection[WorkerRef]) -> float:
        """Takes an attempt's failure; seconds to wait before the next attempt.

        Args:
            error: How the attempt ended.
            workers: Those it was meant for.

        Raises:
            BatonError: There is no next one.
        """
        if not isinstance(error, WorkerFailure) or error.code not in _RETRYABLE:
            raise self._in_context(error)
        moved = error.reason is Reason.DRAINING and error.worker not in self.failed
        self.last = error
        # A dead worker fails alone. Of two that could not hand KV over, either can be at fault.
        alone = error.lost or error.reason is Reason.DRAINING
        self.failed |= {error.worker} if alone else {error.worker, *workers}
        if error.died_at_work:
            self._died.add(error.worker)
            if len(self._died) >= self._policy.max_deaths:
                raise _poison(self._died)
        if moved:
            return 0.0
        self._num_attempts += 1
        if self._num_attempts >= self._policy.max_attempts:
            raise self._exhausted(error)
        if not self._budget.take():
            raise BatonError(
                error.code, f"{error.message} (not tried elsewhere: this gateway has too many retries under way)", 1.0
            )
        if self._num_attempts == 1:
            return 0.0
        return self._uniform(0, self._policy.backoff_s * 2 ** (self._num_attempts - 2))

    def _in_context(self, error: BatonError) -> BatonError:
        """No worker to go to: says why one was needed."""
        if self.last is None or error.code is not ErrorCode.UNAVAILABLE:
            return error
        return BatonError(error.code, f"{error.message} (before: {self.last.message})", error.retry_after_s)

    def _exhausted(self, error: BatonError) -> BatonError:
        if self._policy.max_attempts == 1:
            return error
        return BatonError(
            ErrorCode.UNAVAILABLE,
            f"gave up after {self._num_attempts} attempts: {error.message}",
            error.retry_after_s,
        )


def _poison(died: set[WorkerRef]) -> BatonError:
    names = " and ".join(sorted(worker.name for worker in died))
    return BatonError(
        ErrorCode.INTERNAL,
        f"workers {names} died while they computed this request; it is not tried on another, since it may be what "
        "kills them: look into their logs before you send it again",
    )
