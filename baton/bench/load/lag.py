"""How far the client itself was behind, and whether that makes its figures doubtful."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from baton.bench.percentiles import percentile
from baton.bench.rows import RequestRow
from baton.bench.targets.base import now_s

_INTERVAL_S = 0.01
# Above these a client's own delays are a visible part of what it reports. Timers of an event loop are up to 1 ms late.
MAX_LOOP_LAG_P99_MS = 5.0
MAX_LATENESS_P99_MS = 10.0
MAX_CPU_SHARE = 0.9


class ClientLag(msgspec.Struct, frozen=True):
    """Of one process of the client."""

    process: int
    loop_lag_p99_ms: float  # a timer's delay: what an arrived token waits at most before it is noted
    loop_lag_max_ms: float
    lateness_p99_ms: float  # from a request's time to its sending
    lateness_max_ms: float
    cpu_share: float  # of one core

    @property
    def problems(self) -> list[str]:
        """What was too high; empty when the client kept up."""
        found = []
        if self.loop_lag_p99_ms > MAX_LOOP_LAG_P99_MS:
            found.append(f"its event loop was {self.loop_lag_p99_ms:.1f} ms behind (p99)")
        if self.lateness_p99_ms > MAX_LATENESS_P99_MS:
            found.append(f"requests were sent {self.lateness_p99_ms:.1f} ms late (p99)")
        if self.cpu_share > MAX_CPU_SHARE:
            found.append(f"it used {self.cpu_share:.0%} of its core")
        return found


def bottleneck(lags: Sequence[ClientLag]) -> str | None:
    """What to tell a reader when the client was the bottleneck; None when it kept up."""
    problems = [f"process {lag.process}: {', '.join(lag.problems)}" for lag in lags if lag.problems]
    if not problems:
        return None
    return f"THE CLIENT WAS THE BOTTLENECK; raise --processes or free its cores. {'; '.join(problems)}"


class LagMonitor:
    """Runs beside the load in its event loop, from `start` to `stop`."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._lags_ms: list[float] = []

    def start(self) -> None:
        """Call in the loop that is to be watched."""
        self._cpu_s, self._start_s = time.process_time(), now_s()
        self._task = asyncio.create_task(self._watch())

    def stop(self, rows: Sequence[RequestRow]) -> ClientLag:
        """What was found; the rows tell how late they were sent."""
        self._task.cancel()
        cpu_s, wall_s = time.process_time() - self._cpu_s, now_s() - self._start_s
        late_ms = [(row.sent_s - row.scheduled_s) * 1e3 for row in rows]
        return ClientLag(
            self._process,
            percentile(self._lags_ms or [0.0], 0.99),
            max(self._lags_ms, default=0.0),
            percentile(late_ms or [0.0], 0.99),
            max(late_ms, default=0.0),
            cpu_s / wall_s,
        )

    async def _watch(self) -> None:
        while True:
            before_s = now_s()
            await asyncio.sleep(_INTERVAL_S)
            self._lags_ms += _waits_ms(now_s() - before_s - _INTERVAL_S)


def _waits_ms(late_s: float) -> list[float]:
    """What tokens that came at even intervals waited while a timer was so late: a long stall is to count as long."""
    return [(late_s - passed * _INTERVAL_S) * 1e3 for passed in range(int(late_s / _INTERVAL_S) + 1)]
