"""Fields that config.json leaves out mean what they mean to transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from baton.model_spec import load_model_spec
from engine.models.registry import NATIVE_MODELS

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}


def config_class(architecture: str) -> type[Any]:
    family = architecture.removesuffix("ForCausalLM")
    found: type[Any] = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config"))
    return found


def write_config(folder: Path, architecture: str, fields: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **SIZES, **fields}))
    return folder


def expected_windows(config: Any) -> tuple[int | None, ...]:
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


@pytest.mark.parametrize("architecture", NATIVE_MODELS)
def test_sizes_alone(tmp_path: Path, architecture: str) -> None:
    spec, config = load_model_spec(write_config(tmp_path, architecture, {})), config_class(architecture)(**SIZES)
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert spec.head_dim == (getattr(config, "head_dim", None) or 16)
    assert spec.activation == getattr(config, "hidden_activation", None) or config.hidden_act
    assert spec.windows == expected_windows(config)
    assert spec.query_scale == getattr(config, "query_pre_attn_scalar", spec.head_dim) ** -0.5
    assert spec.attention_softcap == getattr(config, "attn_logit_softcapping", None)
    assert spec.logit_softcap == getattr(config, "final_logit_softcapping", None)
    ropes = config.rope_parameters
    assert spec.rope.theta == ropes.get("full_attention", ropes)["rope_theta"]
    if local := ropes.get("sliding_attention"):
        assert spec.local_rope is not None
        assert spec.local_rope.theta == local["rope_theta"]
    else:
        assert spec.local_rope is None


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("fields", [{}, {"decoder_sparse_step": 3, "mlp_only_layers": [2], "norm_topk_prob": True}])
def test_experts(tmp_path: Path, architecture: str, fields: dict[str, Any]) -> None:
    spec, config = load_model_spec(write_config(tmp_path, architecture, fields)), config_class(architecture)(**SIZES)
    assert spec.moe is not None
    assert spec.moe.num_experts == config.num_local_experts
    assert spec.moe.experts_per_token == config.num_experts_per_tok
    assert spec.moe.intermediate_size == getattr(config, "moe_intermediate_size", 96)
    assert spec.moe.norm_topk_prob is (architecture.startswith("Mixtral") or bool(fields))
    assert spec.moe.layers == ((5, 8, 11) if fields else tuple(range(12)))


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 4, "sliding_window": 512}),
        ("Gemma2ForCausalLM", {"sliding_window": 100}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 5}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"] * 6}),
        ("MistralForCausalLM", {"sliding_window": None}),
        ("Phi3ForCausalLM", {"sliding_window": 2047}),
    ],
)
def test_windows(tmp_path: Path, architecture: str, fields: dict[str, Any]) -> None:
    spec = load_model_spec(write_config(tmp_path, architecture, fields))
    assert spec.windows == expected_windows(config_class(architecture)(**SIZES, **fields))


def test_gemma_3_as_it_was_first_published(tmp_path: Path) -> None:
    """Both embeddings in flat fields; the stretch is of the layers without a window."""
    fields = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    spec = load_model_spec(write_config(tmp_path, "Gemma3ForCausalLM", fields))
    assert spec.local_rope is not None
    assert (spec.rope.theta, spec.rope.type, spec.rope.factor) == (5e5, "linear", 8.0)
    assert (spec.local_rope.theta, spec.local_rope.type, spec.local_rope.factor) == (2e4, "default", 1.0)
