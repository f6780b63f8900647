"""An engine core's configuration: frozen, complete, decided by the service before the core starts."""

import msgspec

from baton.config import POLICIES
from baton.errors import invalid
from baton.load_options import LoadFormat, ModelImpl
from baton.types import Role, WorkerRef

_BLOCK_SIZES = range(8, 129, 8)
_MAX_LEASE_S = 86_400.0  # keeps every deadline within the 64 bits that it travels in


class CacheConfig(msgspec.Struct, frozen=True):
    """The KV pool."""

    block_size: int = 16  # tokens
    kv_cache_bytes: int | None = None  # None: what `engine.kv_sizing` says
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory for weights, activations and the pool
    swap_space_bytes: int = 512 << 20  # host memory for the KV of preempted requests; 0: recompute them
    enable_prefix_caching: bool = True


class SchedulerConfig(msgspec.Struct, frozen=True):
    """Limits of one step."""

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    growth_reserve_blocks: int = 2  # kept free for each running request's next tokens when admitting another
    policy: str = "fcfs"  # or "priority"
    priority_aging_s: float = 10.0  # under "priority": waiting so long counts as one level
    long_prefill_token_threshold: int | None = None  # most tokens of one prompt while others want some; None: half
    overlap_steps: bool | None = None  # plan and launch a step while the one before runs; None: where there is a GPU

    @property
    def prompt_share(self) -> int:
        """Most tokens of one prompt in a step while others want some."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens // 2


class LeaseConfig(msgspec.Struct, frozen=True):
    """How long a grant lives, and how long its blocks stay in quarantine where prefill has not confirmed the end."""

    lease_s: float = 60.0
    longest_write_s: float = 2.0
    clock_margin_s: float = 1.0

    def quarantine_end_unix_ns(self, lease_deadline_unix_ns: int) -> int:
        """When unfenced blocks of a grant are free again, by the clock that has set the deadline."""
        return lease_deadline_unix_ns + int((self.longest_write_s + self.clock_margin_s) * 1e9)


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything an engine core needs to start."""

    model_path: str
    role: Role
    worker: WorkerRef
    model_name: str | None = None
    load_format: LoadFormat = LoadFormat.AUTO
    model_impl: ModelImpl = ModelImpl.AUTO
    device: str = "cpu"
    dtype: str = "float32"
    max_model_len: int | None = None  # default: the model's
    num_threads: int | None = None  # CPU threads for tensor work; default: torch's
    connector: str = "nixl"
    host: str = "127.0.0.1"  # where prefill workers connect to, to tell of their writes
    advertised_host: str = ""  # what they are told to connect to; "": `host`
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    lease: LeaseConfig = LeaseConfig()
    step_log: str | None = None  # a file that gets a line for each step


def check_config(config: EngineConfig) -> None:
    """Passes when every request can make progress under `config`.

    Raises:
        BatonError: INVALID_ARGUMENT naming the flags to change.
    """
    for problem in (_problem_with_steps(config), _problem_with_lease(config.lease)):
        if problem:
            raise invalid(problem)


def _problem_with_steps(config: EngineConfig) -> str | None:
    steps, block_size = config.scheduler, config.cache.block_size
    if block_size not in _BLOCK_SIZES:
        return f"--block-size: got {block_size}, expected a multiple of 8 from 8 to 128"
    if steps.max_num_seqs < 1:
        return f"--max-num-seqs: got {steps.max_num_seqs}, expected at least 1"
    if steps.growth_reserve_blocks < 0:
        return f"--growth-reserve-blocks: got {steps.growth_reserve_blocks}, expected at least 0"
    if steps.max_num_batched_tokens < block_size:
        return (
            f"--max-num-batched-tokens: got {steps.max_num_batched_tokens}, expected at least {block_size} "
            "(--block-size), since a prompt is computed in whole blocks; raise the first or lower the second"
        )
    if steps.max_num_batched_tokens < steps.max_num_seqs:
        return (
            f"--max-num-batched-tokens: got {steps.max_num_batched_tokens}, expected at least {steps.max_num_seqs} "
            "(--max-num-seqs), so that each step has a token for every request; raise the first or lower the second"
        )
    if config.max_model_len is not None and config.max_model_len < 2:
        return f"--max-model-len: got {config.max_model_len}, expected at least 2: a token in and a token out"
    if config.num_threads is not None and config.num_threads < 1:
        return f"--num-threads: got {config.num_threads}, expected at least 1; leave it out for torch's default"
    return _problem_with_policy(steps, block_size) or _problem_with_memory(config.cache)


def _problem_with_policy(steps: SchedulerConfig, block_size: int) -> str | None:
    threshold = steps.long_prefill_token_threshold
    if threshold is not None and not block_size <= threshold <= steps.max_num_batched_tokens:
        return (
            f"--long-prefill-token-threshold: got {threshold}, expected {block_size} (--block-size) to "
            f"{steps.max_num_batched_tokens} (--max-num-batched-tokens)"
        )
    if steps.policy not in POLICIES:
        return f"--scheduling-policy: got {steps.policy!r}, expected one of {', '.join(POLICIES)}"
    if not 0 < steps.priority_aging_s <= _MAX_LEASE_S:  # also for NaN
        return (
            f"--priority-aging-s: got {steps.priority_aging_s:g}, expected seconds above 0 and at most {_MAX_LEASE_S:g}"
        )
    return None


def _problem_with_memory(cache: CacheConfig) -> str | None:
    if not 0 < cache.gpu_memory_utilization <= 1:
        return f"--gpu-memory-utilization: got {cache.gpu_memory_utilization:g}, expected above 0 and at most 1"
    if cache.swap_space_bytes < 0:
        return f"--swap-space-bytes: got {cache.swap_space_bytes}, expected at least 0"
    return None


def _problem_with_lease(lease: LeaseConfig) -> str | None:
    for flag, value in (
        ("--lease-s", lease.lease_s),
        ("--longest-write-s", lease.longest_write_s),
        ("--clock-margin-s", lease.clock_margin_s),
    ):
        if not 0 < value <= _MAX_LEASE_S:  # also for NaN
            return f"{flag}: got {value:g}, expected seconds above 0 and at most {_MAX_LEASE_S:g}"
    return None
