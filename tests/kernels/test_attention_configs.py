"""Measured configurations are found again, broken files are named, and tuning takes the cheapest that runs."""

import math
import time
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import OutOfResources

from baton_kernels.gpu import attention_configs, attention_tuning
from baton_kernels.gpu.attention_configs import AttentionConfigs, config_key, file_name, find_configs, store_configs
from baton_kernels.gpu.attention_decode import DecodeConfig, num_splits
from baton_kernels.gpu.attention_prefill import PrefillConfig

POOL = torch.zeros(1, 2, 1, 2, 16, 128, dtype=torch.bfloat16)
FEW = ((1, DecodeConfig(32, 2, 2, 500, 1)), (8, DecodeConfig(64, 4, 3, 7, 2)))
MINE = AttentionConfigs(DecodeConfig(128, 8, 5, 99, 4), PrefillConfig(64, 128, 4, 2), 2048, FEW)
OTHER = MINE._replace(prompt_tokens=7)


@pytest.fixture
def user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(attention_configs, "PACKAGED", tmp_path)
    return tmp_path / "home" / "kernels" / file_name(POOL.device)


def test_the_users_file_goes_before_the_packages(user_file: Path, tmp_path: Path) -> None:
    default = find_configs(POOL, 8)
    store_configs(tmp_path / user_file.name, config_key(POOL, 8), OTHER)
    assert find_configs(POOL, 8) == OTHER
    store_configs(user_file, config_key(POOL, 8), MINE)
    store_configs(user_file, "another", OTHER)
    assert find_configs(POOL, 8) == MINE
    assert find_configs(POOL, 4) == find_configs(POOL, 16) == default  # another ratio of heads
    assert find_configs(POOL.float(), 8).decode != MINE.decode


def test_few_sequences_have_configurations_of_their_own() -> None:
    assert [MINE.decode_for(seqs).tile_tokens for seqs in (1, 2, 8, 9, 256)] == [32, 64, 64, 128, 128]
    assert OTHER._replace(decode_up_to=()).decode_for(1) == MINE.decode
    assert MINE.most_programs == 500


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"KEY": {"decode": {}}}', '{"KEY": {"decode": {"warps": 4}}}', '{"KEY": 3}']
)
def test_a_broken_file_is_named(user_file: Path, text: str) -> None:
    user_file.parent.mkdir(parents=True)
    user_file.write_text(text.replace("KEY", config_key(POOL, 8)))
    with pytest.raises(ValueError, match=f"{user_file.name}.*measure again"):
        find_configs(POOL, 8)


def test_tuning_takes_the_cheapest_that_runs() -> None:
    costs = {1: 3.0, 2: math.inf, 3: 2.0, 4: 5.0}

    def cost(config: DecodeConfig) -> float:
        if config.warps == 2:
            raise OutOfResources(1, 0, "shared memory")
        return costs[config.warps]

    candidates = [MINE.decode._replace(warps=warps) for warps in costs]
    in_time, too_late = (attention_tuning.Budget(time.monotonic() + seconds) for seconds in (60, -1))
    assert attention_tuning._best(cost, candidates[0], candidates, in_time).warps == 3
    assert attention_tuning._best(cost, candidates[3], candidates, too_late).warps == 4


@pytest.mark.parametrize(
    ("seqs", "context", "splits"),
    [(1, 8192, 64), (8, 8192, 16), (32, 1200, 4), (256, 1200, 1), (1, 40, 1), (1, 130, 2)],
)
def test_splits(seqs: int, context: int, splits: int) -> None:
    assert num_splits(seqs, 8, context, DecodeConfig(64, 4, 3, 1056, 2)) == splits
