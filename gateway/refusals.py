"""Decode workers that had no room for a request: when each may be asked again, and until when that is worth it."""

from collections.abc import Set

from baton.errors import BatonError, ErrorCode
from baton.types import WorkerRef

_MIN_RETRY_S = 0.01


class Refusals:
    """Of one request. Times are seconds on any one clock."""

    def __init__(self, started_s: float, wait_s: float) -> None:
        """`wait_s`: how long the request may wait for room in all."""
        self._started_s = started_s
        self._give_up_at_s = started_s + wait_s
        self._refused: dict[WorkerRef, tuple[float, BatonError]] = {}  # when to try again, and what was said

    @property
    def workers(self) -> Set[WorkerRef]:
        """Those that have refused, and were not asked again since."""
        return self._refused.keys()

    def try_at_s(self, worker: WorkerRef, now_s: float) -> float:
        """When to ask `worker`, which the router has chosen; it does not count as one that refused any more.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when it has refused before, and may be asked again too late only.
        """
        try_at_s, refusal = self._refused.pop(worker, (0.0, None))
        if refusal is not None and try_at_s >= self._give_up_at_s:
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"no decode worker has room for this request after {now_s - self._started_s:.1f} s "
                f"({refusal.message}); send it again later, with a longer deadline, or start more decode workers",
                refusal.retry_after_s,
            )
        return try_at_s

    def add(self, worker: WorkerRef, error: BatonError, now_s: float) -> None:
        """Takes a refusal.

        Raises:
            BatonError: `error` itself, when it is none that says when to try again.
        """
        if error.code is not ErrorCode.RESOURCE_EXHAUSTED or error.retry_after_s is None:
            raise error
        self._refused[worker] = (now_s + max(error.retry_after_s, _MIN_RETRY_S), error)
