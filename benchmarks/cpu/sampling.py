"""What drawing a step's tokens costs on the CPU, by kind of request, beside one argmax over the same logits."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton_kernels.sampling import sample
from baton_kernels.sampling_batch import RowParams, make_batch
from benchmarks.record import result, write

VOCAB = 49_152  # SmolLM2's
KINDS = {
    "greedy": RowParams(temperature=0),
    "temperature": RowParams(),
    "top_k and top_p": RowParams(top_k=50, top_p=0.95),
    "top_p": RowParams(top_p=0.95),
    "min_p": RowParams(min_p=0.05),
    "penalties, greedy": RowParams(
        temperature=0, repetition_penalty=1.1, presence_penalty=0.5, prompt=range(1000), output=range(1000)
    ),
}


def median_ms(run: Callable[[], object], repetitions: int) -> float:
    """Of `repetitions` runs after one that warms up."""
    run()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="to benchmarks/results/cpu_sampling.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logits = torch.randn(options.rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    argmax_ms = median_ms(lambda: logits.argmax(-1), options.repetitions)
    lines = []
    for kind, row in KINDS.items():
        rows = [row._replace(seed=index, position=index) for index in range(options.rows)]
        value = median_ms(
            lambda rows=rows: sample(logits, make_batch(rows, VOCAB, logits.device)),  # type: ignore[misc]
            options.repetitions,
        )
        print(f"{kind:20} {value:8.2f} ms, argmax {argmax_ms:.2f} ms")
        params = {"kind": kind, "rows": options.rows, "vocab": VOCAB, "threads": options.threads}
        baseline = {"name": "argmax", "value": round(argmax_ms, 3)}
        lines.append(result("cpu_sample_ms", "smollm2-135m", params, round(value, 3), "ms", baseline=baseline))
    if options.write:
        write("cpu_sampling", lines)


if __name__ == "__main__":
    main()
