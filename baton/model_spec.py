"""A model folder's config.json, read in one place."""

import json
from pathlib import Path
from typing import Any

import msgspec

from baton.errors import BatonError, ErrorCode
from baton.load_options import LoadFormat
from baton.model_config.defaults import architecture, with_defaults
from baton.model_config.kv_heads import read_num_kv_heads
from baton.model_config.moe import MoeSpec, read_moe
from baton.model_config.rope import RopeSpec, read_rope
from baton.model_config.special import special_fields
from baton.model_config.windows import read_windows
from baton.model_fingerprint import dummy_fingerprint, fingerprint


class ModelSpec(msgspec.Struct, frozen=True):
    """What the rest of Baton needs to know of a model; sizes in elements.

    What config.json says, and nothing about what code can compute: an architecture that no code here knows has a spec,
    too. `engine/models/registry.py` decides.
    """

    name: str  # what clients call it
    path: str
    architecture: str  # for example "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # 0 where config.json has no such field, as in norm_eps
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float  # of RMS norms
    activation: str  # of the MLP: "silu", "gelu_pytorch_tanh", ...
    rope: RopeSpec
    local_rope: RopeSpec | None  # of layers with a window, where it differs
    windows: tuple[int | None, ...]  # by layer: tokens attended to, the token itself included; None for all
    query_scale: float  # on attention scores, before the softmax
    attention_softcap: float | None
    logit_softcap: float | None
    attention_bias: bool
    mlp_bias: bool
    moe: MoeSpec | None
    max_position_embeddings: int  # tokens that a sequence may have, with the stretch of `rope`
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the stored weights
    special: dict[str, Any]  # fields of config.json that a plain Llama does not have, with their values
    fingerprint: str  # 16 hex digits; equal only for the same configuration, weights and tokenizer


def load_model_spec(path: str | Path, name: str | None = None, load_format: LoadFormat = LoadFormat.AUTO) -> ModelSpec:
    """Reads config.json, generation_config.json and the fingerprint's inputs from a model folder.

    Raises:
        BatonError: NOT_FOUND when the folder or its config.json is missing, FAILED_PRECONDITION when config.json lacks
            a field.
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
        taken = dummy_fingerprint if load_format is LoadFormat.DUMMY else fingerprint
        return _from_config(folder, with_defaults(config), name or folder.name, taken(folder))
    except KeyError as error:
        raise BatonError(ErrorCode.FAILED_PRECONDITION, f"{config_file} has no field {error}") from error


def _from_config(folder: Path, config: dict[str, Any], name: str, model_fingerprint: str) -> ModelSpec:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope, local_rope = read_rope(config)
    max_position = rope.reach(config["max_position_embeddings"])
    windows = read_windows(config)
    return ModelSpec(
        name=name,
        path=str(folder),
        architecture=architecture(config),
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config.get("intermediate_size") or 0,
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=read_num_kv_heads(config),
        head_dim=head_dim,
        norm_eps=config.get("rms_norm_eps") or 0.0,
        activation=config.get("hidden_act") or "silu",
        rope=rope,
        local_rope=local_rope,
        windows=windows,
        query_scale=(config.get("query_pre_attn_scalar") or head_dim) ** -0.5,
        attention_softcap=config.get("attn_logit_softcapping"),
        logit_softcap=config.get("final_logit_softcapping"),
        attention_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        moe=read_moe(config),
        max_position_embeddings=max_position,
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        eos_token_ids=_eos_token_ids(folder, config),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        special=special_fields(config, (rope, local_rope), windows, max_position),
        fingerprint=model_fingerprint,
    )


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    generation_file = folder / "generation_config.json"
    generation = json.loads(generation_file.read_text()) if generation_file.is_file() else {}
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return tuple(eos) if isinstance(eos, list) else (eos,) if eos is not None else ()
