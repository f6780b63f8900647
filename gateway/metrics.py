"""What the gateway counts: requests as clients see them, attempts, and the workers it knows."""

from collections.abc import Sequence
from time import perf_counter

from baton.convert import finish_from_pb
from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, sampling_pb2
from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics
from baton.types import Role
from gateway.config import Slo
from gateway.pool import Pool
from gateway.router import Decision

_NOT_OURS = {ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_FOUND, ErrorCode.UNIMPLEMENTED, ErrorCode.CANCELLED}


class GatewayMetrics:
    """One a process; used on the event loop."""

    def __init__(self, metrics: Metrics, slo: Slo) -> None:
        self.slo_s = {"ttft": slo.ttft_s, "itl": slo.itl_s}
        thresholds = metrics.gauge(declared.SLO_SECONDS)
        for name, seconds in self.slo_s.items():
            thresholds.labels(name).set(seconds)
        self.requests = metrics.counter(declared.REQUESTS)
        self.running = metrics.gauge(declared.REQUESTS_RUNNING)
        self.prompt_tokens = metrics.counter(declared.PROMPT_TOKENS)
        self.output_tokens = metrics.counter(declared.OUTPUT_TOKENS)
        self.ttft = metrics.histogram(declared.TTFT)
        self.itl = metrics.histogram(declared.ITL)
        self.request_seconds = metrics.histogram(declared.REQUEST_SECONDS)
        self.slo_requests = metrics.counter(declared.SLO_REQUESTS)
        self.attempts = metrics.counter(declared.ATTEMPTS)
        self.retries = metrics.counter(declared.RETRIES)
        self.refusals = metrics.counter(declared.REFUSALS)
        self.migrations = metrics.counter(declared.MIGRATIONS)
        self._routes = metrics.counter(declared.ROUTES)
        self._route_seconds = metrics.histogram(declared.ROUTE_SECONDS)
        self._route_price = metrics.histogram(declared.ROUTE_PRICE)
        self.reserve_seconds = metrics.histogram(declared.HAND_OVER_PART).labels("reserve")

    def routed(self, decision: Decision, seconds: float) -> None:
        """One decision was made, in `seconds`."""
        self._routes.labels(decision.shape).inc()
        self._route_seconds.observe(seconds)
        if decision.price_s is not None:
            self._route_price.observe(decision.price_s)

    def kept(self, objective: str, met: bool) -> None:
        """One request has kept an objective, or has not."""
        self.slo_requests.labels(objective, "true" if met else "false").inc()


class RequestFigures:
    """One request's, from its arrival on; `end` once, however it ended."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._start_s = perf_counter()
        self._ttft_s: float | None = None
        self._last_s: dict[int, float] = {}  # of each answer, when its newest tokens came
        self._gaps_s = 0.0  # sum over all answers
        self._num_late_tokens = 0  # those behind an answer's first response with tokens
        self._outcome = ErrorCode.CANCELLED.value  # unless something else is told before the end
        self._reason = ""
        self._ended = False
        metrics.running.inc()

    def seen(self, responses: Sequence[inference_pb2.GenerateResponse]) -> Sequence[inference_pb2.GenerateResponse]:
        """What the client gets now, given back as it is. What comes at once has no gap in between."""
        now_s = perf_counter()
        for response in responses:
            if response.token_ids:
                self._take(response.index, len(response.token_ids), now_s)
            if reason := finish_from_pb(response.finish_reason):
                self._reason = reason.value
                if response.index == 0:
                    self._count_prompt(response.usage)
        return responses

    def _take(self, index: int, num_tokens: int, now_s: float) -> None:
        metrics, last_s = self._metrics, self._last_s.get(index)
        if self._ttft_s is None:
            self._ttft_s = now_s - self._start_s
            metrics.ttft.observe(self._ttft_s)
        if last_s is not None and last_s < now_s:
            metrics.itl.observe(now_s - last_s)
            self._gaps_s += now_s - last_s
            self._num_late_tokens += num_tokens
        self._last_s[index] = now_s
        metrics.output_tokens.inc(num_tokens)

    def _count_prompt(self, usage: sampling_pb2.Usage) -> None:
        cached = usage.cached_prompt_tokens
        self._metrics.prompt_tokens.labels("cached").inc(cached)
        self._metrics.prompt_tokens.labels("computed").inc(usage.prompt_tokens - cached)

    def succeed(self) -> None:
        """The last response is made."""
        metrics = self._metrics
        self._outcome = self._reason
        metrics.request_seconds.observe(perf_counter() - self._start_s)
        if self._ttft_s is not None:
            metrics.kept("ttft", self._ttft_s <= metrics.slo_s["ttft"])
        if self._num_late_tokens:
            metrics.kept("itl", self._gaps_s / self._num_late_tokens <= metrics.slo_s["itl"])

    def failed(self, error: Exception) -> None:
        """The request ends with `error`."""
        code = error.code if isinstance(error, BatonError) else ErrorCode.INTERNAL
        self._outcome = code.value
        if code not in _NOT_OURS:
            for objective in self._metrics.slo_s:
                self._metrics.kept(objective, False)

    def end(self) -> None:
        """The call is over. Idempotent."""
        if not self._ended:
            self._ended = True
            self._metrics.running.dec()
            self._metrics.requests.labels(self._outcome).inc()


class PoolFigures:
    """The workers that the gateway knows, counted at a scrape."""

    def __init__(self, metrics: Metrics, pool: Pool) -> None:
        self._pool = pool
        self._workers = metrics.gauge(declared.WORKERS)
        self._requests = metrics.gauge(declared.WORKER_REQUESTS)
        metrics.refresh_before_scrape(self._refresh)

    async def _refresh(self) -> None:
        for role in Role:
            workers = self._pool.workers(role)
            num_avoided = sum(worker.avoided for worker in workers)
            self._workers.labels(role.value, "in_use").set(len(workers) - num_avoided)
            self._workers.labels(role.value, "avoided").set(num_avoided)
            self._requests.labels(role.value).set(sum(worker.in_flight for worker in workers))
