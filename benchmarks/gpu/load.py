"""Weights out of the page cache into GPU memory: what a worker of the llama8b shape waits for when it starts.

Writes a checkpoint of dummy weights in four shards, reads it once so that it is in the page cache, and loads it as a
worker does. Beside it: safetensors' own loading onto the device, file by file, and filling the same model with dummy
weights. The file system must hold the checkpoint: 16 GB with all layers.
"""

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from baton.load_options import LoadFormat
from baton.model_spec import ModelSpec, load_model_spec
from benchmarks.record import result, write
from engine.models.checkpoint import read_checkpoint
from engine.models.dummy import dummy_tensor
from engine.models.registry import load_model
from engine.models.shapes import shape_of

CONFIG = Path(__file__).resolve().parents[1] / "models" / "llama8b" / "config.json"
SHARDS = 4
IN_LAYER = (
    *("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
)


def write_checkpoint(folder: Path, layers: int, device: torch.device) -> ModelSpec:
    """A folder of the llama8b shape with `layers` layers in bfloat16."""
    folder.mkdir()
    config = {**json.loads(CONFIG.read_text()), "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    spec = load_model_spec(folder)
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    names += [f"model.layers.{layer}.{module}.weight" for layer in range(layers) for module in IN_LAYER]
    file_of = {}
    for shard in range(SHARDS):
        file = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        mine = names[len(names) * shard // SHARDS : len(names) * (shard + 1) // SHARDS]
        tensors = {}
        for name in mine:
            shape = shape_of(spec, name)
            assert shape is not None
            tensors[name] = dummy_tensor(name, shape, torch.bfloat16, device).cpu()
        save_file(tensors, file)
        file_of.update(dict.fromkeys(mine, file.name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    return load_model_spec(folder)


def seconds(load: Callable[[], object], device: torch.device) -> float:
    """Of one run, up to where the device is done; what it made is freed."""
    start = time.perf_counter()
    made = load()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elapsed = time.perf_counter() - start
    del made
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return elapsed


def main() -> None:
    """Measures and writes benchmarks/results/gpu_load.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write the checkpoint; default: the temporary folder")
    args = parser.parse_args()
    device = torch.device(args.device)
    work = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        spec = write_checkpoint(work / "llama8b", args.layers, device)
        stored = read_checkpoint(Path(spec.path))
        files = sorted({tensor.file for tensor in stored.values()})
        num_bytes = sum(file.stat().st_size for file in files)
        for file in files:
            with file.open("rb") as handle:
                while handle.read(64 << 20):
                    pass
        runs: dict[str, Callable[[], object]] = {
            "baton": lambda: load_model(spec, torch.bfloat16, device, 8192),
            "safetensors": lambda: [load_file(file, device=str(device)) for file in files],
            "dummy": lambda: load_model(spec, torch.bfloat16, device, 8192, LoadFormat.DUMMY),
        }
        # The first run of each pays for what is paid once in a process.
        times = {name: [seconds(run, device) for _ in range(args.repeats + 1)] for name, run in runs.items()}
    finally:
        shutil.rmtree(work)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    params = {"layers": args.layers, "gb": round(num_bytes / 1e9, 1), "dtype": "bfloat16"}
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    baseline = {"name": "safetensors load_file", "value": num_bytes / 1e9 / median["safetensors"]}
    rate = num_bytes / 1e9 / median["baton"]
    first = {**params, "run": "first of a process"}
    lines = [
        result("weights_load_gb_s", "llama8b", params, rate, "GB/s", baseline=baseline, **gpu),
        result("weights_load_gb_s", "llama8b", first, num_bytes / 1e9 / times["baton"][0], "GB/s", **gpu),
        result("weights_dummy_s", "llama8b", params, median["dummy"], "s", **gpu),
    ]
    if device.type == "cuda":
        write("gpu_load", lines)
    for line in lines:
        print(line["metric"], line["params"], f"{line['value']:.2f}", line["unit"], line.get("baseline", ""))


if __name__ == "__main__":
    main()
