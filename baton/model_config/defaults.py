"""What config.json means where it leaves a field out: other names for it, then transformers' defaults."""

from typing import Any

# Older families' names for what the others agree on.
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
    "num_experts": ("num_local_experts",),
}

# Where these differ from what an absent field means elsewhere. Folders are saved without fields that have the default.
_GEMMA = {
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rms_norm_eps": 1e-6,
}
_BY_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "FalconForCausalLM": {"multi_query": True, "max_position_embeddings": 2048},
    "LlamaForCausalLM": {"rms_norm_eps": 1e-6},
    "MistralForCausalLM": {"rms_norm_eps": 1e-6, "sliding_window": 4096},
    "MixtralForCausalLM": {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    "Qwen2ForCausalLM": {
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "sliding_window": 4096,
    },
    "Qwen3ForCausalLM": {
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "head_dim": 128,
    },
    "Qwen3MoeForCausalLM": {
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
    "Gemma2ForCausalLM": {
        **_GEMMA,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window_pattern": 2,
    },
    "Gemma3ForCausalLM": {
        **_GEMMA,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
    },
}


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """`config` with common names, and with its architecture's defaults for absent fields (a null stays a null)."""
    filled = dict(config)
    for name, others in _OTHER_NAMES.items():
        for other in others:
            if filled.get(name) is None and other in config:
                filled[name] = config[other]
    if config.get("hidden_activation"):  # Gemma's; a `hidden_act` beside it is a left-over
        filled["hidden_act"] = config["hidden_activation"]
    defaults = _BY_ARCHITECTURE.get(architecture(config), {})
    return {**defaults, **filled}


def architecture(config: dict[str, Any]) -> str:
    """The class in transformers that the weights were saved from."""
    names = config["architectures"]
    if not names:
        raise KeyError("architectures")
    return str(names[0])
