"""How large the pool gets on a GPU, and that a start without room for one sequence is refused."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from baton.errors import BatonError, ErrorCode
from baton.model_spec import load_model_spec
from baton.types import KvLayout, Role, WorkerRef
from engine import runner as runner_module
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.kv_sizing import Sizing, largest_step, make_sizing
from engine.runner import ModelRunner
from engine.scheduler.base import StepPlan

LAYOUT = KvLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=16, dtype="float32", model_fingerprint="m")
BLOCK = LAYOUT.block_bytes  # 8 KiB
CONFIG = EngineConfig("m", Role.AGGREGATED, WorkerRef("w", "1"), scheduler=SchedulerConfig(64, 4))
STEP_BLOCKS = 4  # four sequences of 16 tokens


class FakeProbe:
    """A device of 1,000 blocks, with `used_elsewhere` taken by others, weights of 100, and 50 for a step."""

    def __init__(self, used_elsewhere: int = 0) -> None:
        self.used_elsewhere = used_elsewhere
        self.ran = False

    def total_bytes(self) -> int:
        return 1000 * BLOCK

    def free_bytes(self) -> int:
        assert self.ran, "the measured step's pool must be gone"
        return (1000 - 100 - self.used_elsewhere) * BLOCK

    def held_bytes(self) -> int:
        return 100 * BLOCK

    def peak_bytes(self, run: Callable[[], None]) -> int:
        run()
        self.ran = True
        return (100 + 50 + STEP_BLOCKS) * BLOCK


def size(probe: FakeProbe, utilization: float = 0.9, max_model_len: int = 64) -> int:
    config = msgspec.structs.replace(CONFIG, cache=CacheConfig(gpu_memory_utilization=utilization))
    plans: list[tuple[StepPlan, int]] = []
    blocks = Sizing(config, LAYOUT, max_model_len, probe).num_blocks(lambda plan, count: plans.append((plan, count)))
    ((plan, num_blocks),) = plans
    assert (plan.num_tokens, len(plan.sequences), num_blocks) == (64, 4, STEP_BLOCKS)
    return blocks


def test_fills_its_share_behind_weights_and_the_largest_step() -> None:
    assert size(FakeProbe()) == 900 - 100 - 2 * 50
    assert size(FakeProbe(), utilization=0.45) == 450 - 100 - 2 * 50


def test_takes_no_more_than_others_have_left() -> None:
    assert size(FakeProbe(used_elsewhere=50)) == 700
    assert size(FakeProbe(used_elsewhere=400)) == 1000 - 400 - 100 - 2 * 50


@pytest.mark.parametrize("utilization", [0.15, 0.1])
def test_a_share_without_room_for_one_sequence_is_refused(utilization: float) -> None:
    with pytest.raises(
        BatonError, match=r"--gpu-memory-utilization: got 0.1.* raise it, or lower --max-model-len"
    ) as caught:
        size(FakeProbe(), utilization)
    assert caught.value.code is ErrorCode.RESOURCE_EXHAUSTED


def test_a_told_size_wins_on_any_device_and_is_checked_before_the_weights_are_read() -> None:
    told = msgspec.structs.replace(CONFIG, cache=CacheConfig(kv_cache_bytes=10 * BLOCK + 1))
    for device in ("cpu", "cuda"):
        sizing = make_sizing(told, LAYOUT, 160, torch.device(device))
        assert sizing.num_blocks(lambda plan, num_blocks: pytest.fail("nothing is to be measured")) == 10
        with pytest.raises(BatonError, match="--kv-cache-bytes: got 0 MiB, expected at least 1 MiB"):
            make_sizing(told, LAYOUT, 161, torch.device(device))


def test_the_largest_step_keeps_to_all_limits() -> None:
    for budget, seqs, max_model_len in ((512, 64, 4096), (100, 7, 4096), (512, 2, 33), (64, 64, 2)):
        config = msgspec.structs.replace(CONFIG, scheduler=SchedulerConfig(budget, seqs))
        plan, num_blocks = largest_step(config, max_model_len)
        assert plan.num_tokens == min(budget, seqs * (max_model_len - 1))
        assert len(plan.sequences) == min(seqs, budget)
        blocks = [block for seq in plan.sequences for block in seq.request.block_ids]
        assert blocks == list(range(num_blocks))
        assert all(len(seq.request.block_ids) == -(-seq.num_tokens // 16) for seq in plan.sequences)


def test_a_model_runs_the_largest_step_and_then_gets_its_pool(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(str(tiny_llama), Role.AGGREGATED, WorkerRef("w", "1"), scheduler=SchedulerConfig(64, 4))
    probe = FakeProbe()
    monkeypatch.setattr(runner_module, "make_sizing", lambda *args: Sizing(*args[:3], probe))
    runner = ModelRunner(config, load_model_spec(str(tiny_llama), None), 64)
    assert runner.num_blocks == runner.pool.shape[0] == 700
    assert not runner.pool.any()


@pytest.mark.gpu
def test_the_pool_fills_a_real_gpu_to_its_share(tiny_llama: Path) -> None:
    cache = CacheConfig(gpu_memory_utilization=0.2)
    config = EngineConfig(str(tiny_llama), Role.AGGREGATED, WorkerRef("w", "1"), device="cuda", cache=cache)
    runner = ModelRunner(config, load_model_spec(str(tiny_llama), None), 256)
    assert runner.num_blocks
    total = torch.cuda.mem_get_info()[1]
    assert 0.19 * total < torch.cuda.memory_allocated() < 0.2 * total
