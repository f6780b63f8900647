"""Decode and prefill speed on the CPU, beside transformers' `generate` on the same weights and threads in one run.

Both sides note the time at which each token of the batch is there. Prefill is the time to the first, decode the median
gap between two. Repetitions alternate between the sides. Both run with the OpenMP settings of Baton's engine core.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.child import core_environment

os.environ.update(core_environment())  # read when torch is loaded

import torch
import transformers

from baton.fetch import resolve_model
from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import result, write
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Tokens
from engine.roles.local import LocalRole

MODEL = "smollm2-135m"
Generate = Callable[[list[list[int]], int], list[float]]  # prompts, tokens each -> seconds from start to each token


def ours(folder: Path, dtype: str, threads: int, context: int) -> Generate:
    """Baton's aggregated engine, scheduler included, without its process border and without prefix hits."""
    events: list[Event] = []
    config = EngineConfig(
        model_path=str(folder),
        role=Role.AGGREGATED,
        worker=WorkerRef("bench", "1"),
        dtype=dtype,
        num_threads=threads,
        max_model_len=context,
        cache=CacheConfig(kv_cache_bytes=6 << 30, enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_batched_tokens=8192),  # as transformers: one step for all prompts
    )
    role = LocalRole(EngineContext(config, events.extend))

    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        events.clear()
        sampling = SamplingParams(temperature=0, max_tokens=tokens)
        start, moments, produced = time.perf_counter(), [], 0
        for index, prompt in enumerate(prompts):
            role.handle(AddLocal(str(index), 1, tuple(prompt), sampling))
        while role.step():
            role.context.flush()
            produced = sum(isinstance(event, Tokens) for event in events)
            if produced % len(prompts) == 0 and produced > len(prompts) * len(moments):
                moments.append(time.perf_counter() - start)
        if len(moments) != tokens:
            raise RuntimeError(f"got {produced} tokens, expected {tokens} of each of {len(prompts)} requests")
        return moments

    return generate


class Clock(transformers.StoppingCriteria):
    """Never stops; is called once a token."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self._start = time.perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        self.moments.append(time.perf_counter() - self._start)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def theirs(folder: Path, dtype: str) -> Generate:
    """transformers with its default attention and cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(prompts: list[list[int]], tokens: int) -> list[float]:
        ids = torch.tensor(prompts)
        clock = Clock()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )
        if len(clock.moments) != tokens:
            raise RuntimeError(f"got {len(clock.moments)} tokens, expected {tokens}")
        return clock.moments

    return generate


def measure(sides: list[Generate], prompts: list[list[int]], tokens: int, repeats: int) -> list[list[list[float]]]:
    """The moments of each run of each side, in turns after one warm-up."""
    for generate in sides:
        generate(prompts, min(tokens, 2))
    runs: list[list[list[float]]] = [[] for _ in sides]
    for _ in range(repeats):
        for index, generate in enumerate(sides):
            runs[index].append(generate(prompts, tokens))
    return runs


def decode_step_s(runs: list[list[float]]) -> float:
    """The median gap between two tokens."""
    return statistics.median(b - a for moments in runs for a, b in itertools.pairwise(moments))


def first_token_s(runs: list[list[float]]) -> float:
    """The median time to the first token."""
    return statistics.median(moments[0] for moments in runs)


def main() -> None:
    """Measures, prints and writes benchmarks/results/cpu_speed.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=128, help="prompt tokens before decoding")
    parser.add_argument("--tokens", type=int, default=32, help="decode steps measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = resolve_model(MODEL)
    generator = torch.Generator().manual_seed(0)
    baseline = f"transformers {transformers.__version__} generate"
    lines = []
    for dtype in args.dtypes:
        sides = [ours(folder, dtype, args.threads, 2048), theirs(folder, dtype)]
        for batch in (1, 8, 32):
            prompts = torch.randint(100, 40000, (batch, args.context), generator=generator).tolist()
            runs = measure(sides, prompts, args.tokens + 1, args.repeats)
            mine, other = (batch / decode_step_s(side) for side in runs)
            params = {"batch": batch, "dtype": dtype, "context": args.context, "threads": args.threads}
            lines.append(_line("cpu_decode_tok_s", params, mine, other, baseline))
        prompts = torch.randint(100, 40000, (1, 512), generator=generator).tolist()
        mine, other = (512 / first_token_s(side) for side in measure(sides, prompts, 1, 3 * args.repeats))
        params = {"tokens": 512, "dtype": dtype, "threads": args.threads}
        lines.append(_line("cpu_prefill_tok_s", params, mine, other, baseline))
    print(f"wrote {write('cpu_speed', lines)}")


def _line(metric: str, params: dict[str, object], mine: float, other: float, baseline: str) -> dict[str, object]:
    print(f"{metric} {params}: {mine:.1f} tok/s, {mine / other:.2f}x of {other:.1f} ({baseline})", flush=True)
    return result(metric, MODEL, params, mine, "tok/s", baseline={"name": baseline, "value": round(other, 3)})


if __name__ == "__main__":
    main()
