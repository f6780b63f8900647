"""A GGUF's weights as float32 safetensors under Hugging Face's names."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from baton.errors import BatonError, ErrorCode
from baton.fetch.gguf_metadata import GgufMetadata
from baton.fetch.gguf_names import hf_names
from baton.fetch.progress import Progress
from baton.safetensors_file import Float32, write_float32


def hf_name(gguf_name: str, names: Mapping[str, str]) -> str:
    """The Hugging Face name of a tensor: "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight".

    Raises:
        BatonError: FAILED_PRECONDITION for a tensor that no served model of this architecture has.
    """
    module, _, kind = gguf_name.rpartition(".")
    if module in names and kind in ("weight", "bias"):
        return f"{names[module]}.{kind}"
    raise BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"got tensor {gguf_name!r}, expected only weights and biases of a dense model without rope factors",
    )


def unpermute(weight: Float32, num_heads: int) -> Float32:
    """Rows of a Q or K projection ([heads * head_dim, in], or its bias) from GGUF's order to Hugging Face's.

    Llama GGUFs keep each head's rows in pairs (0, d/2), (1, d/2 + 1), ... for interleaved rotary embedding; Hugging
    Face rotates halves and wants 0 .. d/2 - 1 before d/2 .. d - 1.
    """
    pairs = weight.shape[0] // num_heads // 2
    grouped = weight.reshape(num_heads, pairs, 2, *weight.shape[1:])
    return grouped.swapaxes(1, 2).reshape(weight.shape)


def convert_weights(reader: GGUFReader, metadata: GgufMetadata, out: Path, progress: Progress) -> None:
    """Dequantizes all tensors into one safetensors file, one tensor in memory at a time.

    Raises:
        BatonError: FAILED_PRECONDITION naming a tensor that is unknown or of a type that cannot be read.
    """
    names = hf_names(metadata.architecture, metadata.num_layers)
    named = sorted((hf_name(tensor.name, names), tensor) for tensor in reader.tensors)
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


def _convert(name: str, tensor: ReaderTensor, shape: tuple[int, ...], metadata: GgufMetadata) -> Float32:
    try:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(shape)
    except NotImplementedError as error:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got tensor {tensor.name!r} of type {tensor.tensor_type.name}, which the gguf package cannot dequantize; "
            "quantize the model to another type",
        ) from error
    if not metadata.rotates_pairs:
        return weight
    if name.endswith(("self_attn.q_proj.weight", "self_attn.q_proj.bias")):
        return unpermute(weight, metadata.num_heads)
    if name.endswith(("self_attn.k_proj.weight", "self_attn.k_proj.bias")):
        return unpermute(weight, metadata.num_kv_heads)
    return weight
