"""From a worker service's command line to the configuration of its engine core."""

from baton.load_options import LoadFormat, ModelImpl
from baton.types import Role, WorkerRef
from baton.worker.options import WorkerOptions
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig


def engine_config(options: WorkerOptions, role: Role, worker: WorkerRef) -> EngineConfig:
    """Field by field."""
    return EngineConfig(
        model_path=options.model,
        role=role,
        worker=worker,
        model_name=options.served_name,
        load_format=LoadFormat(options.load_format),
        model_impl=ModelImpl(options.model_impl),
        device=options.device,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        num_threads=options.num_threads,
        connector=options.connector,
        host=options.host,
        advertised_host=options.advertised_host,
        cache=CacheConfig(
            block_size=options.block_size,
            kv_cache_bytes=options.kv_cache_bytes,
            gpu_memory_utilization=options.gpu_memory_utilization,
            swap_space_bytes=options.swap_space_bytes,
            enable_prefix_caching=not options.no_prefix_caching,
        ),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            growth_reserve_blocks=options.growth_reserve_blocks,
            policy=options.scheduling_policy,
            priority_aging_s=options.priority_aging_s,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            overlap_steps=False if options.no_step_overlap else None,
        ),
        lease=LeaseConfig(
            lease_s=options.lease_s,
            longest_write_s=options.longest_write_s,
            clock_margin_s=options.clock_margin_s,
        ),
        step_log=options.step_log,
    )
