"""The decisions: plain data in, plain data out, on a clock that the caller gives. Neither asyncio nor gRPC."""

import itertools
from collections.abc import Callable

from gateway.admission.base import AdmissionConfig, Client, Demand, Entry, Refusal, Refused, State
from gateway.admission.estimate import ServiceTimes, WaitTimes
from gateway.admission.fair_queue import FairQueue
from gateway.admission.limit import ConcurrencyLimit

_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0
_UNKNOWN_RETRY_S = 1.0


class AdmissionCore:
    """A request is `arrive`d, `offer`ed and, whatever has become of it, `end`ed.

    Methods that free something return the entries that were decided by that: RUNNING or REFUSED now.
    """

    def __init__(self, config: AdmissionConfig, clock: Callable[[], float]) -> None:
        """`clock`: seconds, never backwards."""
        self._config = config
        self._clock = clock
        self._sequence = itertools.count()
        self._queue = FairQueue(config.max_clients)
        self._arrived: dict[str, int] = {}  # by client; each above 0
        self._num_arrived = 0
        self._queued_tokens = 0
        self._times = ServiceTimes()
        self._waits = WaitTimes()
        self._limit = ConcurrencyLimit(config)
        self.running = 0  # answers

    @property
    def limit(self) -> int:
        """Answers that may be under way."""
        return self._limit.value

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def arrived(self) -> int:
        """Requests that are being read."""
        return self._num_arrived

    def set_workers(self, count: int) -> list[Entry]:
        """How many workers decode now."""
        self._limit.set_workers(count)
        return self._start_next()

    def arrive(self, client: Client, priority: int = 0) -> Entry:
        """A request whose prompt is to be read. REFUSED when there would be no place for it to wait in."""
        entry = Entry(client, priority, next(self._sequence))
        own = self._arrived.get(client.name, 0)
        places = self._config.places(priority)
        if self._num_arrived + len(self._queue) >= places:
            self._refuse(entry, Refused.QUEUE_FULL, f"{places} requests wait already, all that its priority may join")
        elif own + self._queue.length(client) >= self._config.max_queued_per_client:
            text = f"{self._config.max_queued_per_client} requests of this client wait already"
            self._refuse(entry, Refused.CLIENT_QUEUE_FULL, text)
        else:
            self._arrived[client.name] = own + 1
            self._num_arrived += 1
        return entry

    def offer(self, entry: Entry, demand: Demand) -> None:
        """An arrived request's prompt is known. Afterwards it is RUNNING, WAITING or REFUSED."""
        assert entry.state is State.ARRIVED
        self._forget_arrival(entry)
        entry.demand = demand
        entry.priority = demand.priority
        if not self._queue and self._fits(entry):
            self._start(entry)
            return
        if self._queued_tokens + demand.prompt_tokens > self._config.max_queued_tokens:
            text = f"the waiting prompts have {self._queued_tokens} tokens"
            self._refuse(entry, Refused.QUEUE_FULL, text)
            return
        if demand.deadline is not None and self._times.known and self._is_too_late(entry, demand.deadline):
            return
        entry.state = State.WAITING
        entry.offered_at = self._clock()
        entry.predicted_wait_s = self._predicted_wait(entry)
        self._queued_tokens += demand.prompt_tokens
        self._queue.put(entry)

    def first_token(self, entry: Entry) -> None:
        """A running request's first token has come."""
        now = self._clock()
        if entry.state is State.RUNNING and entry.first_token_s is None:
            entry.first_token_s = ttft_s = now - entry.started_at
            tokens = entry.demand.prompt_tokens
            self._limit.first_token(now, self.running, self._times.mean_s, tokens, ttft_s)

    def worker_refused(self) -> None:
        """A worker has no room for a running request."""
        self._limit.refused(self._clock(), self.running, self._times.mean_s)

    def end(self, entry: Entry, num_tokens: int | None = None) -> list[Entry]:
        """The request is over. Idempotent. `num_tokens`: of all answers, where it ended well."""
        state, entry.state = entry.state, State.ENDED
        if state is State.ARRIVED:
            self._forget_arrival(entry)
        elif state is State.WAITING:
            self._leave_queue(entry)
        elif state is State.RUNNING:
            self._learn(entry, num_tokens)
            self.running -= entry.slots
            self._waits.freed(self._clock(), entry.slots, contended=bool(self._queue))
        else:
            return []
        return self._start_next()

    def expire(self, entry: Entry) -> list[Entry]:
        """To be called at a waiting request's `latest_start`. The others that were decided by that."""
        if entry.state is not State.WAITING:
            return []
        self._leave_queue(entry)
        self._give_up(entry)
        return self._start_next()

    def _is_too_late(self, entry: Entry, deadline: float) -> bool:
        now, times, waits = self._clock(), self._times, self._waits
        entry.predicted_s = times.predict(entry.demand)
        entry.latest_start = deadline - entry.predicted_s - times.margin_s
        wait_s = self._predicted_wait(entry)
        late_s = now + wait_s + waits.margin_s - entry.latest_start
        if late_s > 0:
            needed = f"{wait_s:.2f} s of waiting and {entry.predicted_s:.2f} s on the workers"
            spare = f"{times.margin_s + waits.margin_s:.2f} s to spare"
            text = f"it would need {needed}, with {spare}, and its deadline is in {max(0.0, deadline - now):.2f} s"
            self._refuse(entry, Refused.DEADLINE_TOO_SHORT, text, late_s)
        return late_s > 0

    def _predicted_wait(self, entry: Entry) -> float:
        ahead = self._queue.slots_ahead(entry.client, entry.priority, entry.slots)
        return self._waits.predict(ahead + entry.slots, self._times.mean_s, self._limit.value)

    def _give_up(self, entry: Entry) -> None:
        self._waits.waited(entry.predicted_wait_s, self._clock() - entry.offered_at)
        text = f"it has waited, and {entry.predicted_s:.2f} s on the workers are not left before its deadline"
        self._refuse(entry, Refused.DEADLINE_TOO_SHORT, text)

    def _start_next(self) -> list[Entry]:
        decided = []
        now = self._clock()
        while (entry := self._queue.first()) is not None:
            late = entry.latest_start is not None and entry.latest_start < now
            if late:
                self._leave_queue(entry)
                self._give_up(entry)
            elif self._fits(entry):
                self._queue.pop(self._cost(entry.demand))
                self._queued_tokens -= entry.demand.prompt_tokens
                self._waits.waited(entry.predicted_wait_s, now - entry.offered_at)
                self._start(entry)
            else:
                break
            decided.append(entry)
        return decided

    def _fits(self, entry: Entry) -> bool:
        """More answers than places in all begin alone."""
        return self.running == 0 or self.running + entry.slots <= self._limit.value

    def _start(self, entry: Entry) -> None:
        entry.state = State.RUNNING
        entry.started_at = self._clock()
        if self._times.known:
            entry.predicted_s = self._times.predict(entry.demand)
        self.running += entry.slots

    def _learn(self, entry: Entry, num_tokens: int | None) -> None:
        elapsed_s = self._clock() - entry.started_at
        if num_tokens is None:
            self._times.ended_early(elapsed_s)
            return
        first_s = elapsed_s if entry.first_token_s is None else entry.first_token_s
        self._times.ended_well(entry.demand, entry.predicted_s, first_s, elapsed_s, num_tokens)
        self._limit.ended_well(full=bool(self._queue) or self.running >= self._limit.value)

    def _cost(self, demand: Demand) -> float:
        """In tokens: the prompt once, answers as long as they usually are."""
        usual = self._times.mean_tokens if self._times.known else demand.max_tokens
        return demand.prompt_tokens + demand.num_answers * min(float(demand.max_tokens), usual) + 1

    def _refuse(self, entry: Entry, reason: Refused, text: str, retry_after_s: float | None = None) -> None:
        if retry_after_s is None:
            retry_after_s = self._times.mean_s if self._times.known else _UNKNOWN_RETRY_S
        retry_after_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, retry_after_s))
        entry.state = State.REFUSED
        entry.refusal = Refusal(reason, retry_after_s, text)

    def _leave_queue(self, entry: Entry) -> None:
        self._queue.remove(entry)
        self._queued_tokens -= entry.demand.prompt_tokens

    def _forget_arrival(self, entry: Entry) -> None:
        name = entry.client.name
        self._num_arrived -= 1
        self._arrived[name] -= 1
        if not self._arrived[name]:
            del self._arrived[name]
