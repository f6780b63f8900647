"""An engine core's configuration: frozen, complete, decided by the service before the core starts."""

import msgspec

from baton.types import Role, WorkerRef


class CacheConfig(msgspec.Struct, frozen=True):
    """The KV pool."""

    block_size: int = 16  # tokens
    kv_cache_bytes: int = 2 << 30
    enable_prefix_caching: bool = True


class SchedulerConfig(msgspec.Struct, frozen=True):
    """Limits of one step."""

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    growth_reserve_blocks: int = 2  # kept free for each running request's next tokens when admitting another


class LeaseConfig(msgspec.Struct, frozen=True):
    """How long a grant lives, and how long its blocks stay in quarantine where prefill has not confirmed the end."""

    lease_s: float = 60.0
    longest_write_s: float = 2.0
    clock_margin_s: float = 1.0


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything an engine core needs to start."""

    model_path: str
    role: Role
    worker: WorkerRef
    model_name: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    max_model_len: int | None = None  # default: the model's
    num_threads: int | None = None  # CPU threads for tensor work; default: torch's
    connector: str = "nixl"
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    lease: LeaseConfig = LeaseConfig()
