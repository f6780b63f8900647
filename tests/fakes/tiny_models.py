"""Random models of a few layers, one or more for each architecture with model code: what parity is tested on."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

CONTEXT = 72  # tokens of every test sequence; windows and original lengths below are shorter, so that they matter
WINDOW = 20
_SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONG = {"short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0], "long_factor": [1.5, 2, 2.5, 3, 4, 5, 6, 8.0]}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 5}

# Name: the family's configuration class without "Config", and where it differs from _SIZES.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_attention_heads": 6, "head_dim": 64, "hidden_size": 96, "initializer_range": 0.1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "llama-dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 32},
    ),
    "llama-yarn": ("Llama", {"rope_parameters": _YARN}),
    "llama-llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "rope_parameters": _YARN},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-biases": ("Qwen3", {"head_dim": 32, "attention_bias": True}),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "phi3-longrope-long": (
        "Phi3",
        {"rope_parameters": {"rope_type": "longrope", **_LONG}, "original_max_position_embeddings": 64},
    ),
    "phi3-longrope-short": (
        "Phi3",
        {"rope_parameters": {"rope_type": "longrope", **_LONG}, "original_max_position_embeddings": 128},
    ),
    "phi3-partial-rotary": ("Phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("Mixtral", _EXPERTS),
    "mixtral-window": ("Mixtral", {**_EXPERTS, "sliding_window": WINDOW}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-raw-weights": (
        "Qwen3Moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "decoder_sparse_step": 2},
    ),
}


def write_tiny_model(case: str, folder: Path) -> PreTrainedModel:
    """Fills `folder` with the model of CASES and returns it: transformers' code for it, in float32."""
    family, fields = CASES[case]
    config: PreTrainedConfig = getattr(transformers, f"{family}Config")(**{**_SIZES, **fields})
    torch.manual_seed(0)
    # Eager attention is the definition: the others leave soft caps out.
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases begin as ones and zeros, which are the same as none
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(folder)
    return model.eval()
