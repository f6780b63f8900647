"""The gateway's options, read once from the command line."""

from dataclasses import dataclass
from pathlib import Path

from baton.load_options import LoadFormat
from gateway.admission.base import AdmissionConfig


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What one gateway process was started with."""

    model: Path  # the same model as the workers'; its weights count for the fingerprint, but are not loaded
    model_name: str | None = None  # None: the folder's name
    load_format: LoadFormat = LoadFormat.AUTO  # the workers'; counts for the fingerprint
    host: str = "127.0.0.1"
    port: int = 8080  # 0: a free one
    http_port: int | None = None  # None: no HTTP; 0: a free one
    http_timeout_s: float = 3600.0  # the longest that an HTTP request may take
    redis_url: str = "redis://127.0.0.1:6379/0"
    otlp_endpoint: str | None = None
    max_message_mib: int = 4
    max_attempts: int = 3  # of one request, on other workers where there are some
    routing_policy: str = "prefix"  # a name of gateway/routing/registry.py
    processes: int = 1  # on the same ports
    shared_port: bool = False  # this is one of them
    port_file: Path | None = None  # gets the bound port once the gateway serves
    http_port_file: Path | None = None  # written before port_file
    tool_call_parser: str = "auto"  # a name of gateway/parsing/registry.py
    reasoning_parser: str = "none"  # likewise
    metrics_port: int | None = None  # None: no metrics are served; 0: a free one
    metrics_port_file: Path | None = None  # written before port_file
    # Objectives that metrics count requests by; by default those of MLPerf Inference's server scenario for Llama 2 70B.
    slo_ttft_ms: float = 2000.0
    slo_itl_ms: float = 200.0
    tls_dir: Path | None = None  # None: no TLS; see baton/tls.py
    mtls: bool = False  # callers need certificates
    api_keys: Path | None = None  # None: no keys are needed
    max_queued: int = 4096  # requests that wait to be started
    max_queued_per_client: int = 1024

    @property
    def slo(self) -> "Slo":
        """What a request is to keep."""
        return Slo(self.slo_ttft_ms / 1000, self.slo_itl_ms / 1000)

    @property
    def admission(self) -> AdmissionConfig:
        """What bounds the queue."""
        return AdmissionConfig(self.max_queued, self.max_queued_per_client, ttft_s=self.slo.ttft_s)


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of one request; seconds."""

    ttft_s: float  # time to first token
    itl_s: float  # mean time between tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the gateway waits for others; seconds."""

    max_reserve_wait_s: float = 30.0  # for room on a decode worker, over all attempts
    reserve_timeout_s: float = 10.0  # for one answer to Reserve
    grammar_compile_s: float = 30.0  # on top, when a grammar is compiled first; a worker's first one loads the compiler
    cleanup_timeout_s: float = 5.0  # for CancelPrefill and Release, each
    transfer_wait_s: float = 1.0  # for PrefillDone when all else is known
    migrate_timeout_s: float = 30.0  # for a decode worker to hand a running request on
    poll_interval_s: float = 0.5  # between looks at the worker directory
    # A worker that is not in the directory any more stays in use this long while it says that it serves: longer than
    # workers take to register anew in a Redis that has come back empty (5 s / 3 between heartbeats).
    unlisted_s: float = 5.0
    health_timeout_s: float = 1.0  # for a worker's answer whether it serves
    avoid_s: float = 1.0  # after a worker could not be reached
    prefix_lookup_s: float = 0.25  # above this a look-up counts as a miss
