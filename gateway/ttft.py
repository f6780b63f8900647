"""Where the time to a request's first token went: parts that follow one another, so that they add up to it."""

from collections.abc import Callable
from time import perf_counter

from baton.rpc import worker_pb2

# In a request's order, but that a failed attempt's reserving, computing and waiting count as "retry".
PARTS = ("tokenize", "admit", "route", "reserve", "retry", "queue", "compute", "travel", "send")
_PART_OF_SPAN = {
    "gateway.tokenize": "tokenize",
    "gateway.admit": "admit",
    "gateway.route": "route",
    "decode.reserve": "reserve",
}


class TtftParts:
    """A stopwatch that starts with the request. What happens between two laps belongs to the second one's part.

    The worker says how long the prompt waited and was computed; its clock need not agree with ours. What is left from
    the call until the token is here is "travel": the way there and back, and the worker's own processes. The transfer
    of KV and admission to decode are behind the first token and in none of the parts.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._start_s = self._last_s = clock()
        self._parts_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._has_token = False
        self._sent_s: float | None = None

    def span_ended(self, name: str) -> None:
        """A span of the request is over; those that are no part of the way to the first token do not count."""
        if part := _PART_OF_SPAN.get(name):
            self.lap(part)

    def lap(self, part: str) -> None:
        """What has passed since the last lap belongs to `part`. Behind the first token only its sending counts."""
        if self._has_token and part != "send":
            return
        now_s = self._clock()
        self._parts_s[part] += now_s - self._last_s
        self._last_s = now_s

    def first_token(self, times: worker_pb2.PromptTimes) -> None:
        """The first token is here. Later calls change nothing."""
        if self._has_token:
            return
        before_s = self._parts_s["travel"]
        self.lap("travel")
        left_s = self._parts_s["travel"] - before_s
        for part, us in (("queue", times.queue_us), ("compute", times.compute_us)):
            taken_s = min(us / 1e6, left_s)
            self._parts_s[part] += taken_s
            left_s -= taken_s
        self._parts_s["travel"] = before_s + left_s
        self._has_token = True

    def sent(self) -> dict[str, int] | None:
        """The first response with tokens goes out: span attributes in microseconds, once; None from then on."""
        if self._sent_s is not None:
            return None
        self.first_token(worker_pb2.PromptTimes())  # of another answer's prompt, which this one shares
        self.lap("send")
        self._sent_s = self._last_s
        parts = {f"baton.ttft.{part}_us": round(seconds * 1e6) for part, seconds in self._parts_s.items()}
        return {"baton.ttft_us": round((self._sent_s - self._start_s) * 1e6), **parts}
