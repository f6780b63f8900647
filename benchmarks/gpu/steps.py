"""Engine steps on a GPU with dummy weights: decode steps by batch, and whole prompts, through the model runner.

A step is what the engine does for it: building the batch, running the model, drawing the tokens, and their way to the
host. Time is the median over steps on the host's clock.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec
from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import ROOT, result, write
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.request import Request
from engine.runner import ModelRunner
from engine.scheduler.base import BlockCopies, SequencePlan, StepPlan

VLLM_DECODE_MS = {  # 0.25.1 on an H200, context 1.1k, from batch 32 on 1.2k
    "llama8b": {1: 4.92, 8: 5.22, 32: 6.32, 128: 10.85, 256: 18.16},
    "qwen06b": {1: 1.99, 8: 1.81, 32: 2.33, 128: 6.26, 256: 10.9},
}
VLLM_PREFILL_MS = {
    "llama8b": {512: 15.6, 2048: 51.5, 8192: 212.0, 32768: 1190.0},
    "qwen06b": {512: 10.5, 2048: 18.9, 8192: 35.2, 32768: 271.0},
}
NO_COPIES = BlockCopies((), ())
BLOCK_SIZE = 16


def make_runner(model: str, max_tokens: int) -> ModelRunner:
    """With dummy weights and a pool as large as the memory allows."""
    folder = ROOT / "benchmarks" / "models" / model
    config = EngineConfig(
        str(folder),
        Role.AGGREGATED,
        WorkerRef("bench", "1"),
        device="cuda",
        dtype="bfloat16",
        load_format=LoadFormat.DUMMY,
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=256),
    )
    return ModelRunner(config, load_model_spec(str(folder), None, LoadFormat.DUMMY), 33_024)


def make_requests(count: int, context: int, first_block: int = 0) -> list[Request]:
    """Requests of `context` computed tokens, and one to compute, with room for 64 more.

    Random tokens: rows that are all alike run faster, since a GPU then switches fewer bits.
    """
    rng = random.Random(0)
    blocks = -(-(context + 64) // BLOCK_SIZE)
    requests = []
    for index in range(count):
        sampling = SamplingParams(temperature=0, max_tokens=4096)
        request = Request((str(index), 1), context, sampling, rng.choices(range(1000, 100_000), k=context + 1), 0, b"")
        request.num_computed_tokens = context
        request.block_ids = list(range(first_block + index * blocks, first_block + (index + 1) * blocks))
        requests.append(request)
    return requests


def decode_ms(runner: ModelRunner, batch: int, context: int, steps: int = 24) -> float:
    """Median of a decode step."""
    requests, times = make_requests(batch, context), []
    for _ in range(steps):
        plan = StepPlan(tuple(SequencePlan(request, 1, True) for request in requests), NO_COPIES)
        start = time.perf_counter()
        tokens = runner.execute(plan).tokens
        times.append((time.perf_counter() - start) * 1e3)
        for request in requests:
            request.tokens.append(tokens[request.key])
            request.num_computed_tokens += 1
    return statistics.median(times[4:])


def prefill_ms(runner: ModelRunner, num_tokens: int, chunk: int, repeats: int = 4) -> float:
    """Median time to the first token of one prompt."""
    times = []
    for _ in range(repeats):
        (request,) = make_requests(1, num_tokens - 1)
        request.num_computed_tokens = 0
        start = time.perf_counter()
        while request.num_new_tokens:
            count = min(chunk, request.num_new_tokens)
            plan = StepPlan((SequencePlan(request, count, count == request.num_new_tokens),), NO_COPIES)
            runner.execute(plan)
            request.num_computed_tokens += count
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    """Prints a line a figure, and writes benchmarks/results/gpu_steps.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*VLLM_DECODE_MS], default=[*VLLM_DECODE_MS])
    parser.add_argument("--chunk", type=int, default=32768, help="most tokens of a prompt in one step")
    args = parser.parse_args()
    gpu, lines = torch.cuda.get_device_name(), []

    def note(metric: str, model: str, params: dict[str, int], value: float, peer: float) -> None:
        print(f"{metric} {model} {params}: {value:.2f} ms, vLLM {peer:g}", flush=True)
        baseline = {"name": "vLLM 0.25.1", "value": peer}
        lines.append(result(metric, model, params, value, "ms", baseline=baseline, gpu=gpu))

    for model in args.models:
        start = time.perf_counter()
        runner = make_runner(model, args.chunk)
        print(f"{model}: ready in {time.perf_counter() - start:.1f} s, {runner.num_blocks} blocks", flush=True)
        for batch, peer in VLLM_DECODE_MS[model].items():
            context = 1100 if batch < 32 else 1200
            note("decode_step_ms", model, {"batch": batch, "context": context}, decode_ms(runner, batch, context), peer)
        for tokens, peer in VLLM_PREFILL_MS[model].items():
            params = {"tokens": tokens, "chunk": args.chunk}
            note("prefill_ttft_ms", model, params, prefill_ms(runner, tokens, args.chunk), peer)
        del runner
        torch.cuda.empty_cache()
    print(f"wrote {write('gpu_steps', lines)}")


if __name__ == "__main__":
    main()
