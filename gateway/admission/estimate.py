"""How long requests take on the workers, learnt from those that have ended."""

from gateway.admission.base import Demand

_KNOWN_AFTER = 8  # requests; fewer say too little to refuse anybody
_WEIGHT = 0.1  # of the newest request
_RATE_WEIGHT = 0.02  # slower: waits last longer than the ups and downs of the limit
_SERVICE_MARGIN = 2.0  # mean errors
_WAIT_MARGIN = 4.0  # likewise; who is refused behind a wait has waited for nothing


class Average:
    """Exponentially weighted; the first ones count alike."""

    def __init__(self, weight: float = _WEIGHT) -> None:
        self._weight = weight
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self.value += max(self._weight, 1 / self.count) * (value - self.value)


class ServiceTimes:
    """Seconds from a request's start to its end: to the first token, then a time for each token."""

    def __init__(self) -> None:
        self._first_s = Average()
        self._token_s = Average()
        self._tokens = Average()  # of an answer
        self._whole_s = Average()
        self._error_s = Average()

    @property
    def known(self) -> bool:
        """Whether enough requests have ended."""
        return self._whole_s.count >= _KNOWN_AFTER

    @property
    def mean_s(self) -> float:
        """Of a whole request; 0 while nothing is known."""
        return self._whole_s.value

    @property
    def margin_s(self) -> float:
        """How far predictions of the workers' part are off: a multiple of the mean error, as TCP takes for timeouts."""
        return _SERVICE_MARGIN * self._error_s.value

    @property
    def mean_tokens(self) -> float:
        """Of an answer; 0 while nothing is known."""
        return self._tokens.value

    def predict(self, demand: Demand) -> float:
        """Answers are often shorter than they may be: as long as usual, at most what is allowed."""
        return self._first_s.value + self._token_s.value * max(0.0, min(demand.max_tokens, self._tokens.value) - 1)

    def ended_well(self, demand: Demand, predicted_s: float, first_s: float, whole_s: float, num_tokens: int) -> None:
        """A request has ended; `num_tokens` of all its answers."""
        tokens = num_tokens / demand.num_answers
        if self._whole_s.count:
            self._error_s.add(abs(whole_s - (predicted_s or self.predict(demand))))
        self._first_s.add(first_s)
        if tokens > 1:
            self._token_s.add((whole_s - first_s) / (tokens - 1))
        self._tokens.add(tokens)
        self._whole_s.add(whole_s)

    def ended_early(self, elapsed_s: float) -> None:
        """A request failed or was given up: it would have taken at least this long."""
        if elapsed_s > self._whole_s.value:
            self._whole_s.add(elapsed_s)


class WaitTimes:
    """Seconds in the queue: how fast places become free while somebody waits for one."""

    def __init__(self) -> None:
        self._place_s = Average(_RATE_WEIGHT)
        self._error_s = Average(_RATE_WEIGHT)
        self._last_end: float | None = None  # while there has been a queue ever since

    @property
    def margin_s(self) -> float:
        """How far predictions are off."""
        return _WAIT_MARGIN * self._error_s.value

    def predict(self, places: float, service_s: float, limit: int) -> float:
        """Until `places` have become free. Where that was never seen: by Little's law."""
        place_s = self._place_s.value if self._place_s.count >= _KNOWN_AFTER else service_s / limit
        return places * place_s

    def freed(self, now: float, places: int, contended: bool) -> None:
        """A request has ended; `contended`: somebody waits."""
        if self._last_end is not None:
            self._place_s.add((now - self._last_end) / places)
        self._last_end = now if contended else None

    def waited(self, predicted_s: float, actual_s: float) -> None:
        """A request's wait is over."""
        self._error_s.add(abs(actual_s - predicted_s))
