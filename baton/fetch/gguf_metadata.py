"""What a GGUF says of its model, as config.json and generation_config.json."""

from typing import Any, NamedTuple

import numpy as np
from gguf import GGUFReader

from baton.errors import BatonError, ErrorCode

# GGUF's names of the architectures that are read, with Hugging Face's class and model_type.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}


class GgufMetadata(NamedTuple):
    """A model's hyperparameters and its tokenizer's special ids."""

    architecture: str  # as GGUF calls it
    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int
    pad_token_id: int | None
    unk_token_id: int | None

    @property
    def rotates_pairs(self) -> bool:
        """Whether rotary embedding takes neighbours as pairs, so that rows of Q and K stand in another order."""
        return self.architecture == "llama"


def field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """A metadata value as plain Python, or `default` when the file does not have it."""
    entry = reader.get_field(key)
    return default if entry is None else entry.contents()


def required(reader: GGUFReader, key: str) -> Any:
    """A metadata value that must be there.

    Raises:
        BatonError: FAILED_PRECONDITION naming the key.
    """
    value = field(reader, key)
    if value is None:
        raise BatonError(ErrorCode.FAILED_PRECONDITION, f"the GGUF file has no {key!r}; give a whole model")
    return value


def read_metadata(reader: GGUFReader) -> GgufMetadata:
    """Reads the hyperparameters.

    Raises:
        BatonError: FAILED_PRECONDITION for another architecture, scaled rope or a missing field.
    """
    architecture = required(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got GGUF architecture {architecture!r}, expected one of {', '.join(ARCHITECTURES)}; give the model as a "
            "folder with safetensors",
        )
    scaling = field(reader, f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, f"got rope scaling {scaling!r}, expected none; it is not served"
        )
    num_heads = required(reader, f"{architecture}.attention.head_count")
    hidden_size = required(reader, f"{architecture}.embedding_length")
    return GgufMetadata(
        architecture=architecture,
        name=field(reader, "general.name", ""),
        hidden_size=hidden_size,
        intermediate_size=required(reader, f"{architecture}.feed_forward_length"),
        num_layers=required(reader, f"{architecture}.block_count"),
        num_heads=num_heads,
        num_kv_heads=field(reader, f"{architecture}.attention.head_count_kv", num_heads),
        head_dim=field(reader, f"{architecture}.attention.key_length", hidden_size // num_heads),
        vocab_size=len(required(reader, "tokenizer.ggml.tokens")),
        norm_eps=shortest(required(reader, f"{architecture}.attention.layer_norm_rms_epsilon")),
        rope_theta=shortest(field(reader, f"{architecture}.rope.freq_base", 10000.0)),
        max_position_embeddings=required(reader, f"{architecture}.context_length"),
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=required(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=field(reader, "tokenizer.ggml.padding_token_id"),
        unk_token_id=field(reader, "tokenizer.ggml.unknown_token_id"),
    )


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-5 for the stored 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def model_config(metadata: GgufMetadata) -> dict[str, Any]:
    """config.json in the form of the architecture's class."""
    hf_class, model_type = ARCHITECTURES[metadata.architecture]
    return {
        "architectures": [hf_class],
        "model_type": model_type,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": metadata.bos_token_id,
        "eos_token_id": metadata.eos_token_id,
        "pad_token_id": metadata.pad_token_id,
        "head_dim": metadata.head_dim,
        "hidden_act": "silu",
        "hidden_size": metadata.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": metadata.intermediate_size,
        "max_position_embeddings": metadata.max_position_embeddings,
        "mlp_bias": False,
        "num_attention_heads": metadata.num_heads,
        "num_hidden_layers": metadata.num_layers,
        "num_key_value_heads": metadata.num_kv_heads,
        "rms_norm_eps": metadata.norm_eps,
        "rope_theta": metadata.rope_theta,
        "tie_word_embeddings": metadata.tie_word_embeddings,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": metadata.vocab_size,
    }


def generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    """generation_config.json: the special ids."""
    return {
        "bos_token_id": metadata.bos_token_id,
        "eos_token_id": metadata.eos_token_id,
        "pad_token_id": metadata.pad_token_id,
    }
