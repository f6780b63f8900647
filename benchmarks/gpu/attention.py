"""Attention's kernels on a GPU at the shapes of llama8b and qwen06b: times in a CUDA graph, beside what memory or the
tensor cores would allow, and beside torch's own kernels.

Each section runs in a process of its own, so that one which crashes the device leaves the others alone. Lines go to
benchmarks/results/gpu_attention.jsonl and, with --out, to a folder of one's own. Tune first:
python -m baton_kernels.tune_attention.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from baton_kernels.attn import whole_prompt
from baton_kernels.attn.base import Rotated
from baton_kernels.gpu import attention_write
from baton_kernels.gpu.attention_configs import find_configs
from baton_kernels.gpu.attention_problems import ModelShape, decode_work, prefill_work, random_pool
from baton_kernels.gpu.timing import graph_ms
from benchmarks.record import ROOT, result, write

READ_TB_S, MATMUL_TFLOP_S = 4.20, 792  # an H200's ceilings, measured
MODELS = {"llama8b": ModelShape(32, 8, 128, 32), "qwen06b": ModelShape(16, 8, 128, 28)}
DECODES = ((256, 1200), (128, 1200), (32, 1200), (8, 1200), (1, 1200), (8, 8192), (1, 8192))  # sequences, context
PROMPTS = (512, 2048, 8192, 32768)
CHUNKS = ((6144, 2048), (30720, 2048), (8192, 128))  # tokens before, new ones
SECTIONS = ("decode", "prompt", "chunk", "write")
Line = dict[str, Any]


class Report:
    """Measures, prints and keeps lines of one model's section; what fails is printed, and the next goes on."""

    def __init__(self, model: str, layers: int) -> None:
        self.lines: list[Line] = []
        self._model, self._layers, self._gpu = model, layers, torch.cuda.get_device_name()

    def measure(self, params: Line, floor_ms: float, measured: int, make: Callable[[], Callable[[], object]]) -> None:
        """`make` gives work for `measured` layers; the line is for all of the model's."""
        try:
            ms = graph_ms(make()) * self._layers / measured
        except Exception:
            print(f"{self._model} {params} failed:\n{traceback.format_exc()}", flush=True)
            return
        print(f"{self._model} {params}: {ms:.3f} ms, floor {floor_ms:.3f}, {floor_ms / ms:.2f} of it", flush=True)
        params = {**params, "layers": self._layers}
        self.lines.append(
            result("attention_kernel_ms", self._model, params, ms, "ms", floor=round(floor_ms, 3), gpu=self._gpu)
        )


def decode(report: Report, shape: ModelShape) -> None:
    """Bound by reading the contexts' keys and values."""
    pool = random_pool(shape, max(seqs * (context + shape.block_size) for seqs, context in DECODES))
    configs = find_configs(pool, shape.heads)
    print(f"{configs.decode}, {configs.decode_up_to}, {pool.shape[2]} layers at hand", flush=True)
    for seqs, context in DECODES:
        floor = shape.kv_bytes(seqs * context) * shape.layers / READ_TB_S / 1e9
        params = {"phase": "decode", "batch": seqs, "context": context, "backend": "triton"}
        report.measure(
            params,
            floor,
            pool.shape[2],
            lambda seqs=seqs, context=context: decode_work(  # type: ignore[misc]
                pool, shape, seqs, context, configs.decode_for(seqs)
            ),
        )


def prompt(report: Report, shape: ModelShape) -> None:
    """Whole prompts: bound by the tensor cores. Dense kernels get tensors as the projection leaves them."""
    pool = random_pool(shape._replace(layers=2), max(PROMPTS))
    configs = find_configs(pool, shape.heads)
    print(f"{configs.prefill}, dense from {configs.prompt_tokens} tokens on", flush=True)
    for tokens in PROMPTS:
        floor = shape.causal_flops(0, tokens) * shape.layers / MATMUL_TFLOP_S / 1e9
        makers: dict[str, Callable[[], Callable[[], object]]] = {
            "triton": lambda tokens=tokens: prefill_work(pool, shape, 0, tokens, configs.prefill)  # type: ignore[misc]
        }
        for name, kind in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            makers[name] = lambda tokens=tokens, kind=kind: _dense(shape, tokens, kind, 2)  # type: ignore[misc]
        makers["cudnn, contiguous"] = lambda tokens=tokens: _dense(  # type: ignore[misc]
            shape, tokens, SDPBackend.CUDNN_ATTENTION, 2, contiguous=True
        )
        for backend, make in makers.items():
            params = {"phase": "prefill", "tokens": tokens, "before": 0, "backend": backend}
            report.measure(params, floor, 2, make)
    for tokens in (1000, 1000, 1100, 1200):  # the first call at a length has cuDNN plan for it
        work = _dense(shape, tokens, SDPBackend.CUDNN_ATTENTION, 1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        print(f"cuDNN, first call for a prompt of {tokens}: {(time.perf_counter() - start) * 1e3:.2f} ms", flush=True)


def chunk(report: Report, shape: ModelShape) -> None:
    """Chunks behind others: Triton out of the pages, torch's flash kernel over keys and values gathered from them."""
    pool = random_pool(shape._replace(layers=2), max(before + new for before, new in CHUNKS))
    config = find_configs(pool, shape.heads).prefill
    for before, new in CHUNKS:
        floor = shape.causal_flops(before, new) * shape.layers / MATMUL_TFLOP_S / 1e9
        makers = {
            "triton": lambda before=before, new=new: prefill_work(pool, shape, before, new, config),  # type: ignore[misc]
            "gather and flash": lambda before=before, new=new: _gathered(pool, shape, before, new),  # type: ignore[misc]
        }
        for backend, make in makers.items():
            params = {"phase": "prefill", "tokens": new, "before": before, "backend": backend}
            report.measure(params, floor, 2, make)


def written(report: Report, shape: ModelShape) -> None:
    """Rotary embedding and the write: bound by reading the projection, and writing queries, keys and values."""
    pool = random_pool(shape, 16384)
    for tokens in (1, 32, 256, 8192):
        row = (shape.heads * 2 + shape.kv_heads * 5) * shape.head_dim * shape.dtype.itemsize
        floor = tokens * row * shape.layers / READ_TB_S / 1e9
        params = {"phase": "write", "tokens": tokens, "backend": "triton"}
        report.measure(params, floor, pool.shape[2], lambda tokens=tokens: _write(pool, shape, tokens))  # type: ignore[misc]


def _dense(
    shape: ModelShape, tokens: int, kind: SDPBackend, layers: int, contiguous: bool = False
) -> Callable[[], object]:
    heads, kv_heads = shape.heads, shape.kv_heads
    qkv = torch.randn(tokens, heads + 2 * kv_heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    new = Rotated(qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :])
    if contiguous:
        new = Rotated(*(x.contiguous() for x in new))
    return lambda: [whole_prompt.prompt_attention(new, shape.head_dim**-0.5, [kind]) for _ in range(layers)]


def _gathered(pool: Tensor, shape: ModelShape, before: int, new: int) -> Callable[[], object]:
    ids = torch.randperm(pool.shape[0], device="cuda")[: -(-(before + new) // shape.block_size)]
    queries = torch.randn(1, shape.heads, new, shape.head_dim, dtype=shape.dtype, device="cuda")
    group, mask = shape.heads // shape.kv_heads, causal_lower_right(new, before + new)

    def work() -> None:
        for layer in range(pool.shape[2]):
            kv = pool[:, :, layer].index_select(0, ids)  # [blocks, kv_heads, 2, block_size, head_dim]
            kv = kv.permute(2, 1, 0, 3, 4).reshape(2, 1, shape.kv_heads, -1, shape.head_dim)[..., : before + new, :]
            keys, values = kv.repeat_interleave(group, dim=2)
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    return work


def _write(pool: Tensor, shape: ModelShape, tokens: int) -> Callable[[], object]:
    qkv = torch.randn(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    cos, sin = torch.randn(2, tokens, shape.head_dim, dtype=shape.dtype, device="cuda").unbind()
    slots = torch.randperm(pool.shape[0] * shape.block_size, device="cuda")[:tokens].int()

    def work() -> None:
        for layer in range(pool.shape[2]):
            attention_write.rotate_and_write(qkv, cos, sin, pool, layer, slots, shape.heads, in_place=True)

    return work


def run_section(model: str, section: str, path: Path) -> None:
    """In a process of its own: measures and writes the lines to `path`."""
    report = Report(model, MODELS[model].layers)
    {"decode": decode, "prompt": prompt, "chunk": chunk, "write": written}[section](report, MODELS[model])
    path.write_text(json.dumps(report.lines))


def main() -> int:
    """1 when a section has failed as a whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--section-s", type=float, default=60, help="a section's limit")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder for a copy; default: $OUT")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_section(args.run[0], args.run[1], Path(args.run[2]))
        return 0
    lines: list[Line] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            for section in args.sections:
                path = Path(folder) / f"{model}-{section}.json"
                try:
                    subprocess.run(
                        [sys.executable, __file__, "--run", model, section, str(path)],
                        check=True,
                        timeout=args.section_s,
                    )
                    lines += json.loads(path.read_text())
                except (subprocess.SubprocessError, OSError) as error:
                    failed += 1
                    print(f"{model} {section}: {error}", flush=True)
    command = " ".join(["python", os.path.relpath(__file__, ROOT), *sys.argv[1:]])
    for line in lines:
        line["command"] = command
    path = write("gpu_attention", lines)
    print(f"wrote {len(lines)} lines to {path}")
    if args.out:
        args.out = Path(args.out)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / path.name).write_text(path.read_text())
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
