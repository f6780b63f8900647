"""Admission on the event loop: requests wait here, and errors tell clients when to come back."""

import asyncio

from baton.errors import BatonError, ErrorCode, Reason
from gateway.admission.base import Client, Demand, Entry, Refused, State
from gateway.admission.core import AdmissionCore
from gateway.admission.metrics import AdmissionMetrics

_ADVICE = {
    Refused.QUEUE_FULL: "send it again later, start more workers, or raise --max-queued",
    Refused.CLIENT_QUEUE_FULL: "send fewer at a time, or raise --max-queued-per-client",
    Refused.DEADLINE_TOO_SHORT: "send it again later or with a later deadline, or start more workers",
}


class Ticket:
    """One request's way through admission. `end` once it is over, however it ended."""

    def __init__(self, owner: "Admission", entry: Entry) -> None:
        self._owner = owner
        self._entry = entry
        self._num_tokens: int | None = None

    async def start(self, demand: Demand) -> None:
        """Returns when the request may go to workers. Waiting ends with the caller's task, or with a refusal.

        Raises:
            BatonError: RESOURCE_EXHAUSTED with the reason and a time after which to come again.
        """
        await self._owner.start(self._entry, demand)

    def first_token(self) -> None:
        """The first token has come. Idempotent."""
        self._owner.core.first_token(self._entry)

    def succeed(self, num_tokens: int) -> None:
        """It ends well, with so many tokens in all answers."""
        self._num_tokens = num_tokens

    def end(self) -> None:
        """It is over. Idempotent."""
        self._owner.end(self._entry, self._num_tokens)


class Admission:
    """One a process; used on the event loop."""

    def __init__(self, core: AdmissionCore, metrics: AdmissionMetrics) -> None:
        """`core`: on the event loop's clock."""
        self.core = core
        self._metrics = metrics
        self._waiting: dict[Entry, asyncio.Future[None]] = {}
        metrics.show(core)

    def arrive(self, client: Client, priority: int) -> Ticket:
        """Before anything is done for a request, whose `priority` is unchecked yet.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when it would have no place to wait in.
        """
        entry = self.core.arrive(client, priority)
        self._check(entry)
        return Ticket(self, entry)

    async def start(self, entry: Entry, demand: Demand) -> None:
        """For `Ticket`."""
        clock = asyncio.get_running_loop().time
        offered_at = clock()
        self.core.offer(entry, demand)
        if entry.state is State.WAITING:
            await self._wait(entry)
        self._check(entry)
        self._metrics.wait_seconds.observe(clock() - offered_at)

    def end(self, entry: Entry, num_tokens: int | None) -> None:
        """For `Ticket`."""
        self._tell(self.core.end(entry, num_tokens))

    def worker_refused(self) -> None:
        """A worker has no room for a request that was admitted."""
        self.core.worker_refused()

    def set_workers(self, count: int) -> None:
        """How many workers decode now."""
        self._tell(self.core.set_workers(count))

    async def _wait(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        decided = self._waiting[entry] = loop.create_future()
        timer = None
        if entry.latest_start is not None:
            timer = loop.call_at(entry.latest_start, self._expire, entry)
        try:
            await decided
        finally:
            del self._waiting[entry]
            if timer is not None:
                timer.cancel()

    def _expire(self, entry: Entry) -> None:
        self._tell([*self.core.expire(entry), entry])

    def _tell(self, decided: list[Entry]) -> None:
        for entry in decided:
            future = self._waiting.get(entry)
            if future is not None and not future.done():
                future.set_result(None)

    def _check(self, entry: Entry) -> None:
        refusal = entry.refusal
        if entry.state is State.REFUSED and refusal is not None:
            self._metrics.refusals.labels(refusal.reason.value).inc()
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"the request was not started: {refusal.message}; {_ADVICE[refusal.reason]}",
                refusal.retry_after_s,
                Reason(refusal.reason.value),
            )
