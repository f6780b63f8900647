"""Limits under which some request could never make progress are refused at the start, naming the flag to change."""

import logging
import math
from pathlib import Path

import msgspec
import pytest
import torch

from baton.errors import BatonError, ErrorCode
from baton.types import Role, WorkerRef
from baton_kernels import native
from engine.config import CacheConfig, EngineConfig, LeaseConfig, SchedulerConfig, check_config
from engine.context import EngineContext
from engine.device import open_device
from tests.fakes.role_pair import make_context

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
        (
            {"scheduler": SchedulerConfig(long_prefill_token_threshold=8)},
            r"--long-prefill-token-threshold: got 8, expected 16 \(--block-size\) to 512 \(--max-num-batched-tokens\)",
        ),
        ({"scheduler": SchedulerConfig(policy="lifo")}, "--scheduling-policy: got 'lifo', expected one of fcfs, pr"),
        ({"scheduler": SchedulerConfig(priority_aging_s=math.nan)}, "--priority-aging-s: got nan, expected seconds"),
        ({"cache": CacheConfig(gpu_memory_utilization=0)}, "--gpu-memory-utilization: got 0, expected above 0"),
        ({"cache": CacheConfig(swap_space_bytes=-1)}, "--swap-space-bytes: got -1, expected at least 0"),
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


def test_a_context_longer_than_the_models_is_refused_with_the_models(tiny_llama: Path) -> None:
    config = msgspec.structs.replace(CONFIG, model_path=str(tiny_llama), max_model_len=257)
    with pytest.raises(BatonError, match=r"--max-model-len: got 257, expected at most 256, .* tiny-llama") as caught:
        EngineContext(config, send=lambda events: None)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "cpu cuda"])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(BatonError, match=f"--device: got '{name}', expected cpu, cuda or cuda:N"):
        open_device(name)


def test_a_gpu_that_torch_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BatonError, match=r"--device: got 'cuda', expected cpu, since torch .* (CUDA|no GPU)"):
        open_device("cuda")


def test_a_gpu_beyond_the_last_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert open_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(BatonError, match="got 'cuda:7', expected cuda:0 to cuda:1: torch sees 2 GPU"):
        open_device("cuda:7")


@pytest.mark.parametrize("built", [True, False])
def test_missing_cpu_kernels_are_told_once(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, built: bool
) -> None:
    monkeypatch.setattr(native, "available", lambda: built)
    with caplog.at_level(logging.WARNING):
        make_context(tiny_llama, Role.PREFILL, [])
    assert [record.message.partition(",")[0] for record in caplog.records] == (
        [] if built else ["computing without the compiled CPU kernels"]
    )
