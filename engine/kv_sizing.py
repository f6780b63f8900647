"""How many KV blocks the pool gets: what it is told, or what a GPU has left behind weights and the largest step."""

import gc
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from baton.arguments import DEFAULT_KV_CACHE_BYTES
from baton.errors import BatonError, ErrorCode
from baton.types import KvLayout, SamplingParams
from engine.config import EngineConfig
from engine.request import Request
from engine.scheduler.base import SequencePlan, StepPlan

CPU_KV_CACHE_BYTES = DEFAULT_KV_CACHE_BYTES  # where --kv-cache-bytes is left out
RunPlan = Callable[[StepPlan, int], None]  # executes a plan over a pool of so many blocks, and frees that


class MemoryProbe(Protocol):
    """Looks at a device's memory."""

    def total_bytes(self) -> int:
        """Of the device."""

    def free_bytes(self) -> int:
        """Of the device, whoever uses the rest; what this process only keeps for later counts as free."""

    def held_bytes(self) -> int:
        """In this process's tensors."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """The most that this process's tensors hold at any moment of `run`."""


class CudaProbe(MemoryProbe):
    """Of one CUDA device, through torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free_bytes(self) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


class Sizing(NamedTuple):
    """Decides the pool's size once the weights are loaded; `probe` is None where the size is told."""

    config: EngineConfig
    layout: KvLayout
    max_model_len: int
    probe: MemoryProbe | None

    @property
    def needed_blocks(self) -> int:
        """For one sequence of `max_model_len` tokens."""
        return math.ceil(self.max_model_len / self.layout.block_size)

    def num_blocks(self, run: RunPlan) -> int:
        """Blocks of the pool; `run` is called where a step must be measured.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when one sequence of `max_model_len` does not fit.
        """
        if self.probe is None:
            return self._told() // self.layout.block_bytes
        kv_bytes = self._left(self.probe, run)
        num_blocks = kv_bytes // self.layout.block_bytes
        if num_blocks < self.needed_blocks:
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"--gpu-memory-utilization: got {self.config.cache.gpu_memory_utilization:g}, which leaves "
                f"{max(0, kv_bytes) / 2**20:.0f} MiB for KV behind weights and the largest step, expected "
                f"{self._needed_mib()} MiB to hold one sequence of {self.max_model_len} tokens; raise it, or lower "
                "--max-model-len or --max-num-batched-tokens",
            )
        return num_blocks

    def check_told(self) -> None:
        """For before the weights are loaded: whether the size, where it is told, is enough.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when it is not.
        """
        if self.probe is None and self._told() // self.layout.block_bytes < self.needed_blocks:
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"--kv-cache-bytes: got {self._told() / 2**20:.0f} MiB, expected at least {self._needed_mib()} MiB "
                f"to hold one sequence of {self.max_model_len} tokens; raise it, or lower --max-model-len",
            )

    def _told(self) -> int:
        told = self.config.cache.kv_cache_bytes
        return CPU_KV_CACHE_BYTES if told is None else told

    def _needed_mib(self) -> int:
        return math.ceil(self.needed_blocks * self.layout.block_bytes / 2**20)

    def _left(self, probe: MemoryProbe, run: RunPlan) -> int:
        """Bytes for KV, of our share of the device and of what is free on it."""
        weights = probe.held_bytes()
        plan, num_blocks = largest_step(self.config, self.max_model_len)
        peak = probe.peak_bytes(lambda: run(plan, num_blocks)) - num_blocks * self.layout.block_bytes
        share = int(probe.total_bytes() * self.config.cache.gpu_memory_utilization)
        activations = peak - weights
        # Once more for graphs, which keep what steps of at most that size need in a memory of their own.
        return min(share - peak, probe.free_bytes() - activations) - activations


def make_sizing(config: EngineConfig, layout: KvLayout, max_model_len: int, device: torch.device) -> Sizing:
    """For before the weights are loaded.

    Raises:
        BatonError: RESOURCE_EXHAUSTED when `--kv-cache-bytes` decides and is too small.
    """
    measured = device.type == "cuda" and config.cache.kv_cache_bytes is None
    sizing = Sizing(config, layout, max_model_len, CudaProbe(device) if measured else None)
    sizing.check_told()
    return sizing


def largest_step(config: EngineConfig, max_model_len: int) -> tuple[StepPlan, int]:
    """As many tokens as a step can have, in as many sequences, all drawing; and the blocks that they need."""
    steps, block_size = config.scheduler, config.cache.block_size
    num_tokens = steps.max_num_batched_tokens
    most = max_model_len - 1
    count = min(num_tokens, steps.max_num_seqs)
    sampling = SamplingParams(temperature=1.0, top_p=0.9)  # sorts the logits, which drawing at its simplest does not
    sequences, next_block = [], 0
    for index in range(count):
        length = min(most, num_tokens // count + (index < num_tokens % count))
        blocks = math.ceil(length / block_size)
        request = Request((str(index), 0), length, sampling, [0] * length, 0, b"")
        request.block_ids = list(range(next_block, next_block + blocks))
        next_block += blocks
        sequences.append(SequencePlan(request, length, sample=True))
    return StepPlan(tuple(sequences)), next_block
