"""Engine steps on a GPU with dummy weights: decode steps by batch, and whole prompts, as the role's client sees them.

A decode step is a turn of the engine core's loop, from one batch of tokens told to the next: scheduling, building the
batch, running the model, drawing the tokens, their way to the host, and their events. Time is the median over turns on
the host's clock.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from benchmarks.gpu.core import Core
from benchmarks.record import result, write

VLLM_DECODE_MS = {  # 0.25.1 on an H200, context 1.1k, from batch 32 on 1.2k
    "llama8b": {1: 4.92, 8: 5.22, 32: 6.32, 128: 10.85, 256: 18.16},
    "qwen06b": {1: 1.99, 8: 1.81, 32: 2.33, 128: 6.26, 256: 10.9},
}
VLLM_PREFILL_MS = {
    "llama8b": {512: 15.6, 2048: 51.5, 8192: 212.0, 32768: 1190.0},
    "qwen06b": {512: 10.5, 2048: 18.9, 8192: 35.2, 32768: 271.0},
}
MAX_MODEL_LEN = 33_024


def decode_ms(core: Core, batch: int, context: int, steps: int = 48) -> float:
    """Median of a decode step, of requests whose contexts grow from `context` tokens on."""
    for _ in range(batch):
        core.add(context, steps + 16)
    told_at_once = 0
    while told_at_once < batch:  # until all prompts are computed
        told = core.num_told
        core.turn()
        told_at_once = core.num_told - told
    for _ in range(4):
        core.turn()
    times = []
    for _ in range(steps // 2):
        told = core.num_told
        times.append(core.turn_ms())
        if core.num_told != told + batch:
            raise RuntimeError(f"got {core.num_told - told} tokens in a turn, expected {batch}: raise --chunk")
    core.finish()
    return statistics.median(times)


def prefill_ms(core: Core, num_tokens: int, repeats: int = 4) -> float:
    """Median time to the first token of one prompt."""
    times = []
    for _ in range(repeats):
        core.add(num_tokens, 1)
        told, start = core.num_told, time.perf_counter()
        while core.num_told == told:
            core.turn()
        times.append((time.perf_counter() - start) * 1e3)
        core.finish()
    return statistics.median(times[1:])


def main() -> None:
    """Prints a line a figure, and writes benchmarks/results/gpu_steps.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*VLLM_DECODE_MS], default=[*VLLM_DECODE_MS])
    parser.add_argument("--chunk", type=int, default=32768, help="most tokens of a prompt in one step")
    parser.add_argument("--no-step-overlap", action="store_true", help="as the worker's flag")
    args = parser.parse_args()
    gpu, lines = torch.cuda.get_device_name(), []

    def note(metric: str, model: str, params: dict[str, int], value: float, peer: float) -> None:
        print(f"{metric} {model} {params}: {value:.2f} ms, vLLM {peer:g}", flush=True)
        baseline = {"name": "vLLM 0.25.1", "value": peer}
        lines.append(result(metric, model, params, value, "ms", baseline=baseline, gpu=gpu))

    for model in args.models:
        start = time.perf_counter()
        core = Core(model, args.chunk, MAX_MODEL_LEN, overlap=not args.no_step_overlap)
        blocks = core.role.context.runner.num_blocks
        print(f"{model}: ready in {time.perf_counter() - start:.1f} s, {blocks} blocks", flush=True)
        for batch, peer in VLLM_DECODE_MS[model].items():
            context = 1100 if batch < 32 else 1200
            params = {"batch": batch, "context": context, "overlap": not args.no_step_overlap}
            note("decode_step_ms", model, params, decode_ms(core, batch, context), peer)
        for tokens, peer in VLLM_PREFILL_MS[model].items():
            params = {"tokens": tokens, "chunk": args.chunk}
            note("prefill_ttft_ms", model, params, prefill_ms(core, tokens), peer)
        core.close()
    print(f"wrote {write('gpu_steps', lines)}")


if __name__ == "__main__":
    main()
