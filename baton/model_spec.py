"""A model folder's config.json, read in one place."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from baton.errors import BatonError, ErrorCode


class ModelSpec(msgspec.Struct, frozen=True):
    """What the rest of Baton needs to know of a model; sizes in elements."""

    name: str  # what clients call it
    path: str
    architecture: str  # for example "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the stored weights
    fingerprint: str  # 16 hex digits; equal only for the same configuration, weights and tokenizer


def load_model_spec(path: str | Path, name: str | None = None) -> ModelSpec:
    """Reads config.json, generation_config.json and the fingerprint's inputs from a model folder.

    Raises:
        BatonError: NOT_FOUND when the folder or its config.json is missing, FAILED_PRECONDITION when config.json lacks
            a field or asks for something this version cannot do.
    """
    folder = Path(path)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"no config.json in {folder}; give a model folder, or fetch one with `baton fetch smollm2-135m`",
        )
    config = json.loads(config_file.read_text())
    try:
        return _from_config(folder, config, name or folder.name)
    except KeyError as error:
        raise BatonError(ErrorCode.FAILED_PRECONDITION, f"{config_file} has no field {error}") from error


def _from_config(folder: Path, config: dict[str, Any], name: str) -> ModelSpec:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"{folder / 'config.json'}: got rope_type = {rope_type!r}, expected 'default'; use an unscaled model",
        )
    heads = config["num_attention_heads"]
    generation_file = folder / "generation_config.json"
    generation = json.loads(generation_file.read_text()) if generation_file.is_file() else {}
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelSpec(
        name=name,
        path=str(folder),
        architecture=config["architectures"][0],
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        attention_bias=config.get("attention_bias", False),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,) if eos is not None else (),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        fingerprint=fingerprint(folder),
    )


def fingerprint(folder: Path) -> str:
    """SHA-256 (first 16 hex digits) over config.json, tokenizer.json and every weight file's name, size and header.

    A safetensors header lists all tensors with shapes and offsets, but not their values; `baton fetch` therefore leaves
    a checksum of the weights beside them (SHA256SUMS), which is hashed too where present.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "SHA256SUMS"):
        file = folder / name
        digest.update(name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b"") + b"\0")
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as handle:
            size = handle.read(8)
            header = handle.read(min(int.from_bytes(size, "little"), 64 << 20))
        digest.update(file.name.encode() + b"\0" + str(file.stat().st_size).encode() + b"\0" + header)
    return digest.hexdigest()[:16]
