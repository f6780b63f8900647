"""A Llama-architecture GGUF's weights as float32 safetensors under Hugging Face's names."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from baton.errors import BatonError, ErrorCode
from baton.fetch.gguf_metadata import LlamaMetadata
from baton.fetch.progress import Progress
from baton.safetensors_file import Float32, write_float32

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a Llama tensor: "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight".

    Raises:
        BatonError: FAILED_PRECONDITION for a tensor that a Llama model does not have.
    """
    match gguf_name.split("."):
        case ["blk", layer, module, "weight"] if module in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[module]}.weight"
        case [module, "weight"] if module in _TOP:
            return f"{_TOP[module]}.weight"
    raise BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"got tensor {gguf_name!r}, expected only the weights of a Llama model (no biases, no rope factors)",
    )


def unpermute(weight: Float32, num_heads: int) -> Float32:
    """Rows of a Q or K projection ([heads * head_dim, in]) from GGUF's order to Hugging Face's.

    Llama GGUFs keep each head's rows in pairs (0, d/2), (1, d/2 + 1), ... for interleaved rotary embedding; Hugging
    Face rotates halves and wants 0 .. d/2 - 1 before d/2 .. d - 1.
    """
    pairs = weight.shape[0] // num_heads // 2
    grouped = weight.reshape(num_heads, pairs, 2, *weight.shape[1:])
    return grouped.swapaxes(1, 2).reshape(weight.shape)


def convert_weights(reader: GGUFReader, metadata: LlamaMetadata, out: Path, progress: Progress) -> None:
    """Dequantizes all tensors into one safetensors file, one tensor in memory at a time."""
    named = sorted((hf_name(tensor.name), tensor) for tensor in reader.tensors)
    shapes = {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in named}
    total = 4 * sum(int(tensor.n_elements) for _, tensor in named)

    def converted() -> Iterator[tuple[str, Float32]]:
        done = 0
        progress("convert", 0, total)
        for name, tensor in named:
            yield name, _convert(name, tensor, shapes[name], metadata)
            done += 4 * int(tensor.n_elements)
            progress("convert", done, total)

    write_float32(out, shapes, converted())


def _convert(name: str, tensor: ReaderTensor, shape: tuple[int, ...], metadata: LlamaMetadata) -> Float32:
    weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(shape)
    if name.endswith("self_attn.q_proj.weight"):
        return unpermute(weight, metadata.num_heads)
    if name.endswith("self_attn.k_proj.weight"):
        return unpermute(weight, metadata.num_kv_heads)
    return weight
