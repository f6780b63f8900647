"""Every Prometheus metric of this project: name, unit, help, and labels with all values that they can have."""

import enum
from dataclasses import dataclass

from baton.errors import ErrorCode
from baton.telemetry.buckets import STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS
from baton.types import FinishReason, Role


class Kind(enum.StrEnum):
    """As Prometheus calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """`values`: all that there are; () where a process has one, for its whole life."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration. `name` carries the unit, and `_total` in a counter."""

    kind: Kind
    name: str
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram


def _counter(name: str, unit: str, text: str, *labels: Label) -> Metric:
    return Metric(Kind.COUNTER, name, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: Label) -> Metric:
    return Metric(Kind.GAUGE, name, unit, text, labels)


def _histogram(name: str, unit: str, text: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return Metric(Kind.HISTOGRAM, name, unit, text, labels, buckets)


_ERRORS = tuple(ErrorCode)
_ROLE = Label("role", tuple(Role))
_SLO = Label("slo", ("ttft", "itl"))

_TTFT_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
_ITL_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0)
_REQUEST_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_PART_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROUTE_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_REDIS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

# --- gateway: requests as clients see them ---

REQUESTS = _counter(
    "baton_gateway_requests_total",
    "requests",
    "Requests that have ended, by error code or by the finish reason of the answer that ended last.",
    Label("outcome", (*FinishReason, *_ERRORS)),
)
REQUESTS_RUNNING = _gauge("baton_gateway_requests_running", "requests", "Requests that have not ended.")
PROMPT_TOKENS = _counter(
    "baton_gateway_prompt_tokens_total",
    "tokens",
    "Prompt tokens of requests that ended well, by whether a worker had to compute them or had them cached.",
    Label("source", ("computed", "cached")),
)
OUTPUT_TOKENS = _counter("baton_gateway_output_tokens_total", "tokens", "Output tokens sent to clients.")
TTFT = _histogram(
    "baton_gateway_time_to_first_token_seconds",
    "seconds",
    "From a request's arrival to the response with its first token.",
    _TTFT_SECONDS,
)
ITL = _histogram(
    "baton_gateway_inter_token_latency_seconds",
    "seconds",
    "Between two consecutive responses with tokens of one answer.",
    _ITL_SECONDS,
)
REQUEST_SECONDS = _histogram(
    "baton_gateway_request_duration_seconds", "seconds", "Of requests that ended well.", _REQUEST_SECONDS
)
SLO_REQUESTS = _counter(
    "baton_gateway_slo_requests_total",
    "requests",
    "Requests by whether they kept an objective. Those that Baton has failed have not; bad or cancelled ones do not "
    "count, nor do answers of one token for itl.",
    _SLO,
    Label("met", ("true", "false")),
)
SLO_SECONDS = _gauge(
    "baton_gateway_slo_threshold_seconds",
    "seconds",
    "What a request is to keep: its time to first token (ttft), its mean time between tokens (itl).",
    _SLO,
)
ATTEMPTS = _counter(
    "baton_gateway_attempts_total", "attempts", "Attempts begun; a request that no worker fails has one."
)
RETRIES = _counter(
    "baton_gateway_retries_total",
    "attempts",
    "Attempts that followed a failed one, by what that failed of.",
    Label("after", _ERRORS),
)
REFUSALS = _counter(
    "baton_gateway_reserve_refusals_total", "calls", "Reserve calls that a decode worker refused for lack of room."
)
MIGRATIONS = _counter(
    "baton_gateway_migrations_total",
    "requests",
    "Running requests that a decode worker wanted to be rid of, by what became of it.",
    Label("outcome", ("moved", "stayed")),
)
ROUTES = _counter(
    "baton_gateway_routes_total",
    "decisions",
    "Routing decisions by what was chosen: two workers (apart), an aggregated one, a decode worker that prefills, too.",
    Label("choice", ("apart", "aggregated", "decode")),
)
ROUTE_SECONDS = _histogram(
    "baton_gateway_route_duration_seconds",
    "seconds",
    "Of routing decisions, with hashing and looking the prefix up.",
    _ROUTE_SECONDS,
)
ROUTE_PRICE = _histogram(
    "baton_gateway_route_price_seconds",
    "seconds",
    "What the taken choice was expected to cost, where the policy prices: cost.",
    _PART_SECONDS,
)
INDEX_BLOCKS = _gauge("baton_gateway_index_blocks", "blocks", "Different blocks that the gateway knows an owner of.")
INDEX_EVENTS = _counter(
    "baton_gateway_index_events_total", "events", "Block events of registered workers that were not known before."
)
INDEX_RESYNCS = _counter(
    "baton_gateway_index_resyncs_total", "reads", "Reads of all that one worker owns: of a new one, or after a gap."
)
WORKERS = _gauge(
    "baton_gateway_workers",
    "workers",
    "Workers that the gateway knows: in use, or ranked last since they drain or could not be reached.",
    _ROLE,
    Label("state", ("in_use", "avoided")),
)
WORKER_REQUESTS = _gauge(
    "baton_gateway_worker_requests", "requests", "Requests of this gateway that occupy workers, by role.", _ROLE
)

ADMISSION_QUEUED = _gauge("baton_gateway_admission_queued", "requests", "Requests that wait to be started.")
ADMISSION_RUNNING = _gauge(
    "baton_gateway_admission_running", "answers", "Answers that were started and have not ended."
)
ADMISSION_LIMIT = _gauge(
    "baton_gateway_admission_limit", "answers", "Answers that may be under way, learnt from what workers accept."
)
ADMISSION_REFUSALS = _counter(
    "baton_gateway_admission_refusals_total",
    "requests",
    "Requests that were refused before they were started, by why.",
    Label("reason", ("queue_full", "client_queue_full", "deadline_too_short")),
)
ADMISSION_WAIT = _histogram(
    "baton_gateway_admission_wait_seconds",
    "seconds",
    "Of started requests, from the known prompt to the start.",
    _PART_SECONDS,
)

# --- the parts of a hand-over, each from the process that measures it ---

HAND_OVER_PART = _histogram(
    "baton_hand_over_part_seconds",
    "seconds",
    "Gateway: reserve. Prefill worker: queue, compute, and transfer: what is left of it after the last step. Decode "
    "worker: admit, from KvReady's sending to the running batch, verification included.",
    _PART_SECONDS,
    Label("part", ("reserve", "queue", "compute", "transfer", "admit")),
)

# --- Redis, from gateway and workers ---

REDIS_UP = _gauge("baton_redis_up", "", "Whether the last round of calls to Redis was answered.")
REDIS_ERRORS = _counter("baton_redis_errors_total", "rounds", "Rounds of calls to Redis that failed.")
REDIS_SECONDS = _histogram(
    "baton_redis_round_duration_seconds", "seconds", "One round of calls to Redis that was answered.", _REDIS_SECONDS
)
REDIS_LAG = _gauge(
    "baton_redis_publish_lag_seconds",
    "seconds",
    "Age of the oldest change of this worker's prefix cache that is not in Redis yet.",
    _ROLE,
)

# --- worker: one engine core and its service ---

WORKER_INFO = _gauge(
    "baton_worker_info", "", "1, with what this worker is.", _ROLE, Label("worker", ()), Label("model", ())
)
DRAINING = _gauge("baton_worker_draining", "", "1 when the worker takes nothing new and is about to leave.", _ROLE)
STATS_AGE = _gauge(
    "baton_worker_engine_stats_age_seconds",
    "seconds",
    "Age of the engine core's figures; more than a step's time when the core does not answer.",
    _ROLE,
)
ATTEMPTS_OPEN = _gauge(
    "baton_worker_attempts_open", "attempts", "Running, waiting, granted, or with a KV write under way.", _ROLE
)
ATTEMPTS_ENDED = _counter(
    "baton_worker_attempts_total",
    "attempts",
    "Attempts that have ended here, by how; done: also a prompt whose KV is handed over.",
    _ROLE,
    Label("outcome", ("done", "moved", "aborted", *_ERRORS)),
)
ENGINE_REQUESTS = _gauge(
    "baton_worker_requests", "requests", "In the scheduler, by state.", _ROLE, Label("state", ("running", "waiting"))
)
GRANTS_OPEN = _gauge("baton_worker_grants_open", "grants", "Grants whose KV has not come yet.", _ROLE)
KV_BLOCKS = _gauge(
    "baton_worker_kv_blocks",
    "blocks",
    "Blocks of the KV pool by state; they add up to the pool.",
    _ROLE,
    Label("state", ("free", "cached", "active", "quarantined")),
)
KV_POOL_BLOCKS = _gauge("baton_worker_kv_pool_blocks", "blocks", "All blocks of the KV pool.", _ROLE)
SWAP_BLOCKS = _gauge("baton_worker_swap_blocks", "blocks", "Blocks of host memory that preempted requests use.", _ROLE)
PREFIX_TOKENS = _counter(
    "baton_worker_prefix_tokens_total",
    "tokens",
    "Tokens that this worker's prefix cache was asked for, by whether it had them.",
    _ROLE,
    Label("result", ("hit", "miss")),
)
STEP_TIME = _histogram(
    "baton_worker_step_duration_seconds", "seconds", "An engine step's computing.", STEP_SECONDS, _ROLE
)
STEP_BATCH_TOKENS = _histogram(
    "baton_worker_step_tokens", "tokens", "Batch size: tokens computed in an engine step.", STEP_TOKENS, _ROLE
)
STEP_BATCH_REQUESTS = _histogram(
    "baton_worker_step_requests", "requests", "Batch size: requests in an engine step.", STEP_SEQUENCES, _ROLE
)
PREEMPTIONS = _counter(
    "baton_worker_preemptions_total",
    "requests",
    "Requests whose blocks were taken away, by how they get their KV back.",
    _ROLE,
    Label("how", ("recompute", "swap")),
)
DIGEST_MISMATCHES = _counter(
    "baton_worker_digest_mismatches_total",
    "hand-overs",
    "Hand-overs rejected because the KV is not its request's.",
    _ROLE,
)
QUARANTINES = _counter(
    "baton_worker_quarantines_total", "grants", "Grants closed while a remote write could still land.", _ROLE
)
FENCES = _counter(
    "baton_worker_fences_total",
    "grants",
    "Quarantines that have ended, by why: the writer confirmed that it stopped, or the fence expired.",
    _ROLE,
    Label("how", ("confirmed", "expired")),
)
TETHERED = _gauge(
    "baton_worker_tethered_quarantines",
    "grants",
    "Quarantines that have expired but go on, because the writer's tether says that it still exists.",
    _ROLE,
)
TRANSFER_BYTES = _counter("baton_worker_kv_transfer_bytes_total", "bytes", "KV written to other workers.", _ROLE)
TRANSFER_BLOCKS = _counter(
    "baton_worker_kv_transfer_blocks_total", "blocks", "KV blocks written to other workers.", _ROLE
)
TRANSFER_SECONDS = _counter(
    "baton_worker_kv_transfer_seconds_total",
    "seconds",
    "Sum over KV writes from post to end; bytes by it are the rate of a write.",
    _ROLE,
)
TRANSFER_WRITES = _counter(
    "baton_worker_kv_writes_total",
    "writes",
    "KV writes that have ended.",
    _ROLE,
    Label("result", ("done", "failed")),
)


def all_metrics() -> dict[str, Metric]:
    """Every declaration of this file by name, in order."""
    return {value.name: value for value in globals().values() if isinstance(value, Metric)}
