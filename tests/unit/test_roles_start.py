"""Limits under which some request could never make progress are refused at the start, naming the flag to change."""

import math
from pathlib import Path

import msgspec
import pytest

from baton.errors import BatonError, ErrorCode
from baton.types import Role, WorkerRef
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig, check_config
from engine.context import EngineContext

CONFIG = EngineConfig("/nowhere", Role.PREFILL, WorkerRef("w", "life-1"))


@pytest.mark.parametrize("block_size", [8, 16, 24, 128])
def test_block_sizes_and_equal_limits_are_fine(block_size: int) -> None:
    steps = SchedulerConfig(max_num_batched_tokens=block_size, max_num_seqs=block_size)
    check_config(msgspec.structs.replace(CONFIG, cache=CacheConfig(block_size), scheduler=steps, max_model_len=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache": CacheConfig(block_size=0)}, "--block-size: got 0, expected a multiple of 8 from 8 to 128"),
        ({"cache": CacheConfig(block_size=12)}, "--block-size: got 12"),
        ({"cache": CacheConfig(block_size=136)}, "--block-size: got 136"),
        (
            {"cache": CacheConfig(block_size=32), "scheduler": SchedulerConfig(31, 8)},
            r"--max-num-batched-tokens: got 31, expected at least 32 \(--block-size\)",
        ),
        (
            {"scheduler": SchedulerConfig(63, 64)},
            r"--max-num-batched-tokens: got 63, expected at least 64 \(--max-num-seqs\)",
        ),
        ({"scheduler": SchedulerConfig(max_num_seqs=0)}, "--max-num-seqs: got 0, expected at least 1"),
        ({"scheduler": SchedulerConfig(growth_reserve_blocks=-1)}, "--growth-reserve-blocks: got -1"),
        ({"max_model_len": 1}, "--max-model-len: got 1, expected at least 2"),
        ({"num_threads": 0}, "--num-threads: got 0, expected at least 1"),
        ({"lease": LeaseConfig(lease_s=0)}, "--lease-s: got 0, expected seconds above 0 and at most 86400"),
        ({"lease": LeaseConfig(lease_s=math.inf)}, "--lease-s: got inf"),
        ({"lease": LeaseConfig(longest_write_s=math.nan)}, "--longest-write-s: got nan"),
        ({"lease": LeaseConfig(clock_margin_s=-1)}, "--clock-margin-s: got -1"),
    ],
)
def test_a_start_without_progress_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BatonError, match=message) as caught:
        EngineContext(msgspec.structs.replace(CONFIG, **changes), send=lambda events: None)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_all_of_it_is_refused_before_the_model_is_looked_at(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, model_path=str(tmp_path), lease=LeaseConfig(lease_s=-1))
    with pytest.raises(BatonError, match="--lease-s"):
        EngineContext(config, send=lambda events: None)
