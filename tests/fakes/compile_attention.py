"""Compiles attention kernels for a GPU that need not be there, and prints the bytes of stack that each takes: spills.

Run as `python -m tests.fakes.compile_attention`, without TRITON_INTERPRET.
"""

import re
import subprocess
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from baton_kernels.gpu import attention_decode, attention_prefill, attention_write
from baton_kernels.gpu.attention_configs import default_configs

_NUMBERS = {"factor": "fp32", "slope": "fp32", "eps": "fp32", "parts": "*fp32", "peaks": "*fp32"}
_TENSORS = ("queries", "pool", "out", "qkv", "cos", "sin", "norm_weight")
_INDICES = ("tables", "table_starts", "contexts", "rows", "firsts", "lengths", "tile_seqs", "tile_tokens", "slots")


def stack_bytes(kernel: Any, constants: dict[str, Any], warps: int, stages: int, capability: int) -> int:
    """Of one compiled kernel, with bfloat16 tensors and strides that are multiples of 16."""
    names = list(kernel.arg_names)
    types = dict.fromkeys(names, "i32") | _NUMBERS
    types |= dict.fromkeys(_TENSORS, "*bf16") | dict.fromkeys(_INDICES, "*i32")
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = [
        index
        for index, name in enumerate(names)
        if name not in constants and (types[name].startswith("*") or name.endswith("_stride"))
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
    )
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": constants.get("DEPENDENT", False)}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


def main() -> None:
    """One line a kernel."""
    common = {"BLOCK_SIZE": 16, "GROUP": 4, "UPCAST": False}
    for dim, fancy, capability in ((128, False, 90), (80, True, 90), (256, True, 80)):
        configs = default_configs(torch.bfloat16, dim, torch.device("cpu"))
        shape = common | {"DIM": dim, "DIM_PAD": triton.next_power_of_2(dim), "WINDOWED": fancy, "CAPPED": fancy}
        prefill = configs.prefill
        for decode in (configs.decode, *(config for _, config in configs.decode_up_to)):
            constants = shape | {"ROWS": 16, "TILE": decode.tile_tokens, "SPLIT": True, "DEPENDENT": capability == 90}
            used = stack_bytes(attention_decode._decode_kernel, constants, decode.warps, decode.stages, capability)
            print(f"decode {dim} sm{capability}: {used} bytes of stack", flush=True)
        constants = shape | {"ROWS": prefill.tile_rows, "TILE": prefill.tile_tokens}
        used = stack_bytes(attention_prefill._prefill_kernel, constants, prefill.warps, prefill.stages, capability)
        print(f"prefill {dim} sm{capability}: {used} bytes of stack", flush=True)
    heads = {"HEADS": 32, "KV_HEADS": 8, "HALF": 64, "HALF_PAD": 64, "TILE": 16, "BLOCK_SIZE": 16, "KEPT": 40}
    used = stack_bytes(
        attention_write._write_kernel, heads | {"NORM": True, "DEPENDENT": True, "EARLY": True}, 4, 3, 90
    )
    print(f"write: {used} bytes of stack", flush=True)


if __name__ == "__main__":
    main()
