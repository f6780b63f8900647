"""A model folder's config.json, read in one place."""

import json
from pathlib import Path
from typing import Any

import msgspec

from baton.errors import BatonError, ErrorCode
from baton.model_fingerprint import fingerprint

# Fields of config.json whose other values would silently give other tokens. Absent or null means the value here.
_SERVED = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_FULL_ATTENTION = "full_attention"


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
    _check_served(folder / "config.json", config, rope)
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


def _check_served(config_file: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Refuses what no model code here computes."""
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise _unserved(config_file, "rope_type", rope_type, "'default' (an unscaled model)")
    for field, served in _SERVED.items():
        for part in (config, rope):  # newer folders have partial_rotary_factor in the latter
            if part.get(field) not in (None, served):
                raise _unserved(config_file, field, part[field], repr(served))
    window = config.get("sliding_window")
    if window is not None and config.get("use_sliding_window", True) and window < config["max_position_embeddings"]:
        expected = f"none, or one of at least max_position_embeddings = {config['max_position_embeddings']}"
        raise _unserved(config_file, "sliding_window", window, expected)
    for layer_type in config.get("layer_types") or ():
        if layer_type != _FULL_ATTENTION:
            raise _unserved(config_file, "layer_types", layer_type, f"{_FULL_ATTENTION!r} in every layer")


def _unserved(config_file: Path, field: str, got: Any, expected: str) -> BatonError:
    return BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"{config_file}: got {field} = {got!r}, expected {expected}; this version cannot serve such a model",
    )
