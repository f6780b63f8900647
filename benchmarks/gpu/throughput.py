"""Offline throughput on a GPU with dummy weights: all requests at once through the role, as its client sees it.

Workloads: llama8b with 512 greedy requests of 1,024 tokens in and 256 out; qwen06b with nano-vllm's 256 requests of
100 to 1,024 tokens in and out at temperature 0.6. No prefix caching.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from benchmarks.gpu.core import Core
from benchmarks.record import result, write

VLLM_OUT_TOK_S = {"llama8b": 6327.0, "qwen06b": 24170.0}  # 0.25.1 on an H200
TEMPERATURES = {"llama8b": 0.0, "qwen06b": 0.6}
WORKLOADS = {"llama8b": "512 x (1024 in, 256 out)", "qwen06b": "256 x (100-1024 in, 100-1024 out)"}


def lengths(model: str) -> list[tuple[int, int]]:
    """Tokens in and out of each request."""
    if model == "llama8b":
        return [(1024, 256)] * 512
    rng = random.Random(0)
    # As nano-vllm's benchmark draws them: each prompt's length and its tokens, then all lengths of outputs.
    ins = [len([rng.randint(0, 10_000) for _ in range(rng.randint(100, 1024))]) for _ in range(256)]
    return [(num_in, rng.randint(100, 1024)) for num_in in ins]


def main() -> None:
    """Prints a line a workload, and writes benchmarks/results/gpu_throughput.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--no-step-overlap", action="store_true", help="as the worker's flag")
    args = parser.parse_args()
    overlap = not args.no_step_overlap
    gpu, lines = torch.cuda.get_device_name(), []
    for model in args.models:
        core = Core(model, args.max_num_batched_tokens, max_model_len=4096, overlap=overlap, max_seqs=args.max_num_seqs)
        for num_in in (2048, *range(100, 1100, 20)):  # compiles kernels, for few and for many tokens
            core.add(num_in, 4, TEMPERATURES[model])
        core.finish()
        warm, steps = core.num_told, core.role.context.counts.num_steps
        for num_in, num_out in lengths(model):
            core.add(num_in, num_out, TEMPERATURES[model])
        start = time.perf_counter()
        core.finish()
        seconds = time.perf_counter() - start
        told, expected = core.num_told - warm, sum(num_out for _, num_out in lengths(model))
        if told != expected:
            raise RuntimeError(f"{model}: got {told} tokens, expected {expected}")
        rate, steps = told / seconds, core.role.context.counts.num_steps - steps
        print(f"{model}: {told} tokens in {seconds:.2f} s, {rate:.0f} tok/s, {steps} steps", flush=True)
        params = {"workload": WORKLOADS[model], "max_num_batched_tokens": args.max_num_batched_tokens}
        params |= {"overlap": overlap, "max_num_seqs": args.max_num_seqs}
        baseline = {"name": "vLLM 0.25.1", "value": VLLM_OUT_TOK_S[model]}
        lines.append(result("throughput_out_tok_s", model, params, rate, "tok/s", baseline=baseline, gpu=gpu))
        core.close()
    print(f"wrote {write('gpu_throughput', lines)}")


if __name__ == "__main__":
    main()
