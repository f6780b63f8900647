"""Offline throughput on the CPU: all requests at once through the aggregated engine, beside what products allow.

The allowed rate is that of the model's products alone, at the speed at which this machine multiplies square matrices of
1,024 in this run, with as many threads.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.child import core_environment

os.environ.update(core_environment())  # read when torch is loaded

import torch

from baton.bench.costs import decode_cost, prefill_cost
from baton.fetch import resolve_model
from baton.model_spec import ModelSpec, load_model_spec
from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import result, write
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Tokens
from engine.roles.local import LocalRole

MODEL = "smollm2-135m"


def product_flop_s(dtype: torch.dtype, size: int = 1024, repeats: int = 15) -> float:
    """Median speed of square products."""
    a, b = torch.randn(2, size, size).to(dtype).unbind()
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times[2:])


def output_flop(spec: ModelSpec, num_in: int, num_out: int) -> float:
    """Of one request."""
    decodes = sum(decode_cost(spec, 1, num_in + position).flop for position in range(1, num_out))
    return prefill_cost(spec, num_in).flop + decodes


def run(folder: Path, args: argparse.Namespace) -> float:
    """Output tokens a second, after a warm-up of one request."""
    events: list[Event] = []
    config = EngineConfig(
        model_path=str(folder),
        role=Role.AGGREGATED,
        worker=WorkerRef("bench", "1"),
        dtype=args.dtype,
        num_threads=args.threads,
        max_model_len=2048,
        cache=CacheConfig(kv_cache_bytes=1 << 30, enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_batched_tokens=args.max_num_batched_tokens),
    )
    role = LocalRole(EngineContext(config, events.extend))
    generator = torch.Generator().manual_seed(0)
    sampling = SamplingParams(temperature=0, max_tokens=args.output)

    def add(name: str) -> None:
        prompt = torch.randint(100, 40_000, (args.input,), generator=generator).tolist()
        role.handle(AddLocal(name, 1, tuple(prompt), sampling))

    def finish() -> None:
        while role.step():
            role.context.flush()

    add("warm-up")
    finish()
    events.clear()
    for index in range(args.requests):
        add(str(index))
    start = time.perf_counter()
    finish()
    seconds = time.perf_counter() - start
    told = sum(len(event.token_ids) for event in events if isinstance(event, Tokens))
    if told != args.requests * args.output:
        raise RuntimeError(f"got {told} tokens, expected {args.requests * args.output}")
    return told / seconds


def main() -> None:
    """Measures, prints and writes benchmarks/results/cpu_throughput.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = resolve_model(MODEL)
    rate = run(folder, args)
    flop = output_flop(load_model_spec(folder, MODEL), args.input, args.output)
    allowed = args.output * product_flop_s(getattr(torch, args.dtype)) / flop
    print(f"{rate:.0f} tok/s, {rate / allowed:.0%} of what products allow ({allowed:.0f})")
    workload = f"{args.requests} x ({args.input} in, {args.output} out)"
    params = {"workload": workload, "dtype": args.dtype, "threads": args.threads}
    line = result("throughput_out_tok_s", MODEL, params, rate, "tok/s", floor=round(allowed, 3))
    print(f"wrote {write('cpu_throughput', [line])}")


if __name__ == "__main__":
    main()
