"""`python -m baton_kernels.tune_attention`: measures attention configurations on this GPU and stores the best ones."""

import argparse
import time
from pathlib import Path

import torch

from baton_kernels.gpu.attention_configs import config_key, file_name, store_configs, user_folder
from baton_kernels.gpu.attention_problems import ModelShape
from baton_kernels.gpu.attention_tuning import Budget, tune

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main() -> None:
    """Tunes one shape and adds it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16")
    parser.add_argument("--layers", type=int, default=8, help="that a measurement runs over, each with KV of its own")
    parser.add_argument("--seconds", type=float, default=120, help="after which no further candidate is tried")
    parser.add_argument("--out", type=Path, help="file to add to; default: the user's cache folder, where it is found")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("got no CUDA GPU, expected one: configurations are measured")
    shape = ModelShape(
        args.heads, args.kv_heads, args.head_dim, args.layers, args.block_size, dtype=_DTYPES[args.dtype]
    )
    path = args.out or user_folder() / file_name(torch.device("cuda"))
    configs = tune(shape, Budget(time.monotonic() + args.seconds))
    meta = torch.empty(1, shape.kv_heads, 1, 2, shape.block_size, shape.head_dim, dtype=shape.dtype)
    store_configs(path, config_key(meta, shape.heads), configs)
    print(f"{path}: {config_key(meta, shape.heads)}: {configs}")


if __name__ == "__main__":
    main()
