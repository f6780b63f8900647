"""Which code serves which architecture of config.json; imports it only when asked for."""

import importlib
from pathlib import Path
from typing import NamedTuple

import torch

from baton.errors import BatonError, ErrorCode
from baton.model_config.special import plain_value
from baton.model_spec import ModelSpec
from engine.models.base import Model
from engine.models.weights import Weights


class NativeModel(NamedTuple):
    """Model code of ours."""

    module: str
    name: str  # of a function of spec, weights and max_model_len
    computes: frozenset[str]  # of `ModelSpec.special`: what this code takes into account


def _native(module: str, computes: str, name: str = "load") -> NativeModel:
    return NativeModel(f"engine.models.{module}", name, frozenset({"rope_type", *computes.split()}))


# docs/models.md has a line for each.
NATIVE_MODELS = {
    "LlamaForCausalLM": _native("llama", "hidden_act attention_bias mlp_bias"),
    "MistralForCausalLM": _native("llama", "hidden_act sliding_window"),
    "Qwen2ForCausalLM": _native("qwen2", "hidden_act sliding_window"),
    "Qwen3ForCausalLM": _native("qwen3", "hidden_act sliding_window attention_bias"),
    "Phi3ForCausalLM": _native("phi3", "hidden_act sliding_window partial_rotary_factor"),
    "Gemma2ForCausalLM": _native(
        "gemma",
        "hidden_act sliding_window attention_bias attn_logit_softcapping final_logit_softcapping",
        "load_gemma2",
    ),
    "Gemma3ForCausalLM": _native(
        "gemma", "hidden_act sliding_window attention_bias final_logit_softcapping", "load_gemma3"
    ),
    "MixtralForCausalLM": _native("mixtral", "sliding_window num_experts"),
    "Qwen3MoeForCausalLM": _native("qwen3", "sliding_window attention_bias num_experts"),
}


def load_model(spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_model_len: int) -> Model:
    """Builds and fills a model.

    Raises:
        BatonError: UNIMPLEMENTED for an unknown architecture, FAILED_PRECONDITION when config.json asks for something
            that the architecture's code does not compute, or when the weights do not fit.
    """
    if spec.architecture not in NATIVE_MODELS:
        raise BatonError(
            ErrorCode.UNIMPLEMENTED,
            f"got architecture {spec.architecture}, expected one of {', '.join(sorted(NATIVE_MODELS))}",
        )
    native = NATIVE_MODELS[spec.architecture]
    _check_computed(spec, native)
    weights = Weights(Path(spec.path), dtype, device)
    with torch.inference_mode():
        model: Model = getattr(importlib.import_module(native.module), native.name)(spec, weights, max_model_len)
    weights.check_all_taken()
    return model


def _check_computed(spec: ModelSpec, native: NativeModel) -> None:
    """Refuses what would silently give other tokens."""
    for field, value in spec.special.items():
        if field not in native.computes:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{spec.path}/config.json: got {field} = {value!r}, expected {plain_value(field)}; the model code for "
                f"{spec.architecture} does not compute it",
            )
