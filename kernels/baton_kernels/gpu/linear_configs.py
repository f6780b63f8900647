"""Tuned configurations of `linear`'s kernel, by GPU and shape, out of the JSON file beside this one."""

import json
from functools import lru_cache
from pathlib import Path

import torch

from baton_kernels.gpu.linear import LinearConfig, default_config

TUNED = Path(__file__).with_name("linear_configs.json")
ROWS = (1, 2, 4, 8, 16, 32)  # what is tuned for; a product takes the configuration of the next larger number


@lru_cache(maxsize=1)
def _tuned() -> dict[str, dict[str, list[int]]]:
    tuned: dict[str, dict[str, list[int]]] = json.loads(TUNED.read_text())
    return tuned


def key(rows: int, num_out: int, num_in: int, gated: bool) -> str:
    """How a shape is called in the file."""
    return f"{next(size for size in ROWS if size >= rows)}x{num_out}x{num_in}{'g' if gated else ''}"


def best_config(device: torch.device, rows: int, num_out: int, num_in: int, gated: bool) -> LinearConfig:
    """The tuned configuration for a shape on this GPU; where none was tuned, `default_config`'s."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        found = _tuned().get(f"sm{major}{minor}", {}).get(key(rows, num_out, num_in, gated))
        if found:
            return LinearConfig(*found)
    return default_config(rows, num_out, num_in, gated)
