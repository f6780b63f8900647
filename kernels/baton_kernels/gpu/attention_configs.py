"""Which configurations the attention kernels run with: measured ones where there are some, else defaults.

Measured ones are JSON files, one a GPU model: the user's own (`baton_kernels.tune_attention` writes them) before those
that come with the package. They are read once, when an engine core makes its backend; nothing is measured while
serving.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_kernels.gpu.attention_decode import DecodeConfig
from baton_kernels.gpu.attention_prefill import PrefillConfig

PACKAGED = Path(__file__).parent
_PROGRAMS_A_PROCESSOR = 8  # enough to hide memory's latency at the occupancy that a decode program's registers allow
_FEW = ((2, (128, 4, 5, 2, 1)), (16, (64, 2, 5, 4, 4)), (64, (64, 4, 3, 4, 1)))  # measured on an H200, docs/log.md


class AttentionConfigs(NamedTuple):
    """For one GPU model and one `config_key`."""

    decode: DecodeConfig
    prefill: PrefillConfig
    prompt_tokens: int  # from how many tokens on torch's dense kernels take a whole prompt
    decode_up_to: tuple[tuple[int, DecodeConfig], ...] = ()  # instead of `decode`, for so many sequences; ascending

    def decode_for(self, seqs: int) -> DecodeConfig:
        """What a batch of `seqs` decodes runs with: the fewer there are, the less each should wait for its loads."""
        return next((config for most, config in self.decode_up_to if seqs <= most), self.decode)

    @property
    def most_programs(self) -> int:
        """Of all decode configurations."""
        return max(config.programs for config in (self.decode, *(config for _, config in self.decode_up_to)))


def config_key(pool: Tensor, heads: int) -> str:
    """What a configuration depends on besides the GPU model."""
    _, kv_heads, _, _, block_size, head_dim = pool.shape
    dtype = str(pool.dtype).removeprefix("torch.")
    return f"{dtype} dim {head_dim} block {block_size} group {heads // kv_heads}"


def file_name(device: torch.device) -> str:
    """What the file of a GPU model is called."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"attention_{name.lower().replace(' ', '_')}.json"


def user_folder() -> Path:
    """Where the user's own measurements are."""
    return Path(os.environ.get("BATON_HOME", "~/.cache/baton")).expanduser() / "kernels"


def find_configs(pool: Tensor, heads: int) -> AttentionConfigs:
    """The user's measured configurations, or the package's, or defaults.

    Raises:
        ValueError: a file that is not what `store_configs` writes; says which.
    """
    name, key = file_name(pool.device), config_key(pool, heads)
    for path in (user_folder() / name, PACKAGED / name):
        entry = _read(path).get(key)
        if entry is not None:
            return _parse(entry, path)
    return default_configs(pool.dtype, pool.shape[-1], pool.device)


def default_configs(dtype: torch.dtype, head_dim: int, device: torch.device) -> AttentionConfigs:
    """Tiles that fit registers and shared memory of GPUs from A100 on; what compiled kernels take is tested."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    programs = processors * _PROGRAMS_A_PROCESSOR
    if dtype is torch.float32:  # no tensor cores: exact products
        return AttentionConfigs(DecodeConfig(32, 4, 2, programs, 2), PrefillConfig(32, 32, 4, 2), 1024)
    if head_dim > 128:
        return AttentionConfigs(DecodeConfig(32, 4, 3, programs, 2), PrefillConfig(64, 32, 8, 3), 1024)
    few = tuple(
        (most, DecodeConfig(tile, warps, stages, share * processors, min_tiles))
        for most, (tile, warps, stages, share, min_tiles) in _FEW
    )
    return AttentionConfigs(DecodeConfig(64, 4, 3, programs, 2), PrefillConfig(128, 64, 8, 3), 2048, few)


def store_configs(path: Path, key: str, configs: AttentionConfigs) -> None:
    """Adds measured configurations to the file, or replaces those of the same key."""
    entries = _read(path)
    entries[key] = {
        "decode": configs.decode._asdict(),
        "prefill": configs.prefill._asdict(),
        "prompt_tokens": configs.prompt_tokens,
        "decode_up_to": [[most, config._asdict()] for most, config in configs.decode_up_to],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
    written.replace(path)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}; remove the file, or measure again") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: got {type(entries).__name__}, expected an object; remove the file, or measure again")
    return entries


def _parse(entry: Any, path: Path) -> AttentionConfigs:
    try:
        decode, prefill = DecodeConfig(**entry["decode"]), PrefillConfig(**entry["prefill"])
        few = tuple((int(most), DecodeConfig(**config)) for most, config in entry.get("decode_up_to", ()))
        return AttentionConfigs(decode, prefill, int(entry["prompt_tokens"]), few)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: got {entry!r}: {error!r}; remove the file, or measure again") from None
