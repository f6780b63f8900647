"""Products of few rows at the shapes of llama8b and qwen06b: finds the best configurations, and compares with cuBLAS.

With --tune the best configurations are written to the kernels' package. Weights rotate among copies that together are
larger than the L2 cache, and everything is timed in a CUDA graph.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from baton_kernels.gpu.layers import silu_mul
from baton_kernels.gpu.linear import LinearConfig, Workspace, default_config, fused_linear
from baton_kernels.gpu.linear_configs import ROWS, TUNED, best_config, key
from baton_kernels.gpu.timing import graph_ms
from benchmarks.record import result, write

READ_TB_S = 4.20  # the card's ceiling, measured
SHAPES = {  # out, in, gated
    "llama8b": {
        "qkv": (6144, 4096, False),
        "out": (4096, 4096, False),
        "gate_up": (14336, 4096, True),
        "down": (4096, 14336, False),
        "head": (128256, 4096, False),
    },
    "qwen06b": {
        "qkv": (4096, 1024, False),
        "out": (1024, 2048, False),
        "gate_up": (3072, 1024, True),
        "down": (1024, 3072, False),
        "head": (151936, 1024, False),
    },
}


def candidates(rows: int, num_out: int, num_in: int, gated: bool) -> Iterator[LinearConfig]:
    """Configurations worth a try: enough programs to fill the device, tiles that fit into shared memory."""
    if rows == 1:
        space = itertools.product((4, 8, 16), (512, 1024), (1, 2), (4, 8), (2, 4))
    else:
        space = itertools.product((16, 32, 64), (128, 256), (1, 2, 4), (4,), (3, 5))
    for config in itertools.starmap(LinearConfig, space):
        programs = -(-num_out // config.outputs) * config.splits
        weights = config.outputs * (2 if gated else 1)
        shared = (weights + max(rows, 16)) * config.inputs * 2 * config.stages if rows > 1 else 0
        most = 20_000 if config.splits == 1 else 2_000
        if 100 <= programs <= most and shared <= 220_000 and num_in % (config.inputs * config.splits) == 0:
            yield config


def measure(
    weights: list[Tensor], x: Tensor, workspace: Workspace, gated: bool, config: LinearConfig, target_ms: float = 20.0
) -> float:
    """Milliseconds of one product; `target_ms` as for `graph_ms`."""
    work = [partial(fused_linear, x, weight, workspace, gated=gated, config=config) for weight in weights]
    return graph_ms(lambda: [product() for product in work], target_ms) / len(weights)


def tune(weights: list[Tensor], x: Tensor, workspace: Workspace, gated: bool, deadline: float) -> LinearConfig:
    """The fastest candidate, of those tried before `deadline`."""
    rows, num_in = x.shape
    num_out = weights[0].shape[0] // (2 if gated else 1)
    best, best_ms = default_config(rows, num_out, num_in, gated), float("inf")
    for config in candidates(rows, num_out, num_in, gated):
        if time.monotonic() > deadline:
            print("out of time: the rest is not tuned", flush=True)
            break
        try:
            ms = measure(weights, x, workspace, gated, config, target_ms=1.0)
        except Exception as error:  # too much shared memory, too many registers: such a candidate is out
            print(f"{config}: {type(error).__name__}", flush=True)
            continue
        if ms < best_ms:
            best, best_ms = config, ms
    return best


def main() -> None:
    """Prints a line for each shape and writes benchmarks/results/gpu_linear.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tune-s", type=float, default=300, help="stop tuning after this many seconds")
    args = parser.parse_args()
    deadline = time.monotonic() + args.tune_s
    device, gpu = torch.device("cuda"), torch.cuda.get_device_name()
    major, minor = torch.cuda.get_device_capability()
    tuned = json.loads(TUNED.read_text())
    mine = tuned.setdefault(f"sm{major}{minor}", {})
    workspace, lines = Workspace(device), []
    for model, shapes in SHAPES.items():
        for name, (num_out, num_in, gated) in shapes.items():
            shape = (num_out * (2 if gated else 1), num_in)
            copies = max(2, min(48, int(4e8 // (shape[0] * num_in * 2))))
            weights = [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(copies)]
            for rows in ROWS:
                x = torch.randn(rows, num_in, device=device, dtype=torch.bfloat16)
                if args.tune:
                    mine[key(rows, num_out, num_in, gated)] = list(tune(weights, x, workspace, gated, deadline))
                    TUNED.write_text(json.dumps(tuned, indent=0).replace(",\n", ", ") + "\n")
                    config = LinearConfig(*mine[key(rows, num_out, num_in, gated)])
                else:
                    config = best_config(device, rows, num_out, num_in, gated)
                ms = measure(weights, x, workspace, gated, config)
                behind = silu_mul if gated else (lambda y: y)
                library_ms = graph_ms(lambda: [behind(F.linear(x, w)) for w in weights]) / copies  # noqa: B023
                floor_ms = shape[0] * num_in * 2 / READ_TB_S / 1e9
                print(
                    f"{model} {name:8} rows {rows:2}: {ms * 1e3:6.2f} us, cuBLAS {library_ms * 1e3:6.2f}, "
                    f"floor {floor_ms * 1e3:6.2f}  {tuple(config)}",
                    flush=True,
                )
                params = {"product": name, "rows": rows}
                baseline = {"name": "cuBLAS", "value": round(library_ms * 1e3, 3)}
                lines.append(
                    result("linear_us", model, params, ms * 1e3, "us", floor=floor_ms * 1e3, baseline=baseline, gpu=gpu)
                )
    print(f"wrote {write('gpu_linear', lines)}")


if __name__ == "__main__":
    main()
