"""How many answers may be under way: learnt from what workers accept, by additive increase, multiplicative decrease.

Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance" (1989), with a slow start as
TCP has.
Latency alone is no sign: a batch that grows makes each token later and all tokens more. Refusals are one, and first
tokens that miss their objective and take several times what they can.
"""

from gateway.admission.base import AdmissionConfig

_DECREASE = 0.9
_QUIET_S = 1.0
_LATENCY_FLOOR = 4.0  # answers a worker: late tokens never push below this, a batch of one would be worse
_REFUSAL_FLOOR = 1.0
_SLOWER = 3.0  # times the best time a prompt token: then a late first token has waited
_FORGET = 1.01  # the best time becomes that much worse with each request
_FIXED_TOKENS = 256  # what a first token costs beside its prompt, in prompt tokens


class ConcurrencyLimit:
    """A number for each worker, so that workers that come and go change the whole at once."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._per_worker = config.initial_per_worker
        self._workers = 1
        self._slow_start = True
        self._quiet_until = 0.0  # one decrease for all signs of one congestion
        self._best_token_s: float | None = None

    @property
    def value(self) -> int:
        """Answers under way, at least 1."""
        return max(1, int(self._per_worker * self._workers))

    def set_workers(self, count: int) -> None:
        """How many workers decode now."""
        self._workers = max(1, count)

    def ended_well(self, full: bool) -> None:
        """A request has ended; `full`: all places were taken. What was never used tells nothing of more."""
        if full:
            step = 1.0 if self._slow_start else 1.0 / self.value
            self._per_worker = min(self._config.max_per_worker, self._per_worker + step / self._workers)

    def refused(self, now: float, running: int, service_s: float) -> None:
        """A worker has no room for what was started."""
        self._decrease(now, running, service_s, _REFUSAL_FLOOR)

    def first_token(self, now: float, running: int, service_s: float, prompt_tokens: int, ttft_s: float) -> None:
        """A request's first token has come `ttft_s` after its start."""
        token_s = ttft_s / (prompt_tokens + _FIXED_TOKENS)
        best_s = token_s if self._best_token_s is None else min(token_s, self._best_token_s * _FORGET)
        self._best_token_s = best_s
        if ttft_s > self._config.ttft_s and token_s > _SLOWER * best_s:
            self._decrease(now, running, service_s, _LATENCY_FLOOR)

    def _decrease(self, now: float, running: int, service_s: float, floor: float) -> None:
        if now < self._quiet_until:
            return
        self._slow_start = False
        self._quiet_until = now + max(_QUIET_S, service_s)  # by then its effect can be seen
        used = min(self._per_worker, running / self._workers)
        self._per_worker = min(self._per_worker, max(floor, used * _DECREASE))
