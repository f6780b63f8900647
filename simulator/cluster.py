"""What is simulated: how many workers of which role, their sizes, and how the gateway treats them."""

import msgspec

from baton.errors import invalid
from baton.types import Role, WorkerRef
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig, check_config


class ClusterOptions(msgspec.Struct, frozen=True):
    """Workers of one role are alike. Blocks are by worker."""

    num_prefill: int = 1
    num_decode: int = 1
    num_aggregated: int = 0
    num_blocks: int = 4096
    max_model_len: int = 131_072
    policy: str = "prefix"  # a name of simulator/routing.py
    cache: CacheConfig = CacheConfig()
    prefill: SchedulerConfig = SchedulerConfig()  # of prefill workers
    decode: SchedulerConfig = SchedulerConfig()  # of decode and aggregated workers
    lease: LeaseConfig = LeaseConfig()
    seed: int = 0
    skip_uneventful: bool = True  # simulator/skipping.py; without, the same takes longer

    @property
    def block_size(self) -> int:
        """Tokens."""
        return self.cache.block_size


class Failure(msgspec.Struct, frozen=True):
    """Workers that die at one moment and do not come back."""

    at_s: float
    share: float  # of each role's workers


def engine_config(options: ClusterOptions, role: Role, number: int) -> EngineConfig:
    """Of one worker."""
    return EngineConfig(
        model_path="",
        role=role,
        worker=WorkerRef(f"{role.value}-{number}", "1"),
        max_model_len=options.max_model_len,
        cache=options.cache,
        scheduler=options.prefill if role is Role.PREFILL else options.decode,
        lease=options.lease,
    )


def check_cluster(options: ClusterOptions) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT for a cluster that can serve nothing, or sizes that no worker would start with.
    """
    for role, count in worker_counts(options).items():
        if count < 0:
            raise invalid(f"got --{role.value} {count}, expected 0 or more workers")
    if not options.num_aggregated and not (options.num_prefill and options.num_decode):
        raise invalid(
            f"got --prefill {options.num_prefill} and --decode {options.num_decode}, expected at least one worker of "
            "both, or --aggregated"
        )
    for role in (Role.PREFILL, Role.DECODE):
        check_config(engine_config(options, role, 0))
    needed = -(-options.max_model_len // options.block_size)
    if options.num_blocks < needed:
        raise invalid(
            f"got --num-blocks {options.num_blocks}, expected at least {needed}: blocks of {options.block_size} tokens "
            f"for one request of --max-model-len {options.max_model_len}; raise the first or lower the last"
        )


def worker_counts(options: ClusterOptions) -> dict[Role, int]:
    """By role."""
    return {
        Role.PREFILL: options.num_prefill,
        Role.DECODE: options.num_decode,
        Role.AGGREGATED: options.num_aggregated,
    }
