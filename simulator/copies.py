"""A load several times over: for clusters that one recorded trace would not fill."""

from collections.abc import Sequence

import numpy as np

from baton.bench.workloads.base import Session, Workload
from baton.errors import invalid
from simulator.content import ContentSource


class Copies(Workload):
    """`num_copies` of a recorded load at once, each with prompts of its own.

    Copy number c begins c / `num_copies` of the load's length into it and wraps round, so that bursts do not meet.
    """

    def __init__(self, workload: Workload, source: ContentSource, num_copies: int) -> None:
        """`source`: the one that `workload` was made with.

        Raises:
            BatonError: INVALID_ARGUMENT for a number below 1, or a workload that has no end.
        """
        count = workload.num_sessions
        if num_copies < 1:
            raise invalid(f"got --copies {num_copies}, expected at least 1")
        if count is None:
            raise invalid(f"got --copies {num_copies} of a load without end, expected --workload trace")
        self._workload, self._source = workload, source
        times = np.array([workload.session_arrival_s(number) for number in range(count)])
        span_s = float(times[-1]) * count / max(1, count - 1)  # with the gap behind the last one
        shifted = (times[None, :] + span_s * np.arange(num_copies)[:, None] / num_copies) % max(span_s, 1e-9)
        order = np.argsort(shifted, axis=None, kind="stable")
        self._times_s = shifted.reshape(-1)[order]
        self._copy, self._number = np.divmod(order, count)

    @property
    def num_sessions(self) -> int | None:
        return len(self._times_s)

    def session(self, number: int) -> Session:
        self._source.copy = int(self._copy[number])
        return self._workload.session(int(self._number[number]))

    def session_arrival_s(self, number: int) -> float:
        return float(self._times_s[number])

    @property
    def notes(self) -> Sequence[str]:
        return self._workload.notes
