"""Which code serves which architecture of config.json; imports it only when asked for."""

import contextlib
import importlib
from typing import NamedTuple

import torch

from baton.errors import BatonError, ErrorCode
from baton.load_options import LoadFormat, ModelImpl
from baton.model_config.special import plain_value
from baton.model_spec import ModelSpec
from engine.models.base import Model
from engine.models.source import open_source
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


def load_model(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    load_format: LoadFormat = LoadFormat.AUTO,
    impl: ModelImpl = ModelImpl.AUTO,
) -> Model:
    """Builds and fills a model.

    Raises:
        BatonError: UNIMPLEMENTED for an architecture that neither our code nor, where `impl` allows it, transformers'
            can run on paged attention; FAILED_PRECONDITION when config.json asks for something that the architecture's
            code does not compute, when the weights do not fit, or when transformers is needed and not installed.
    """
    problem = _native_problem(spec)
    if impl is ModelImpl.TRANSFORMERS or (impl is ModelImpl.AUTO and problem):
        reason = problem if impl is ModelImpl.AUTO else None
        return _load_by_transformers(spec, dtype, device, max_model_len, load_format, reason)
    if problem:
        raise problem
    native = NATIVE_MODELS[spec.architecture]
    with contextlib.closing(open_source(spec, device, load_format)) as source, torch.inference_mode():
        weights = Weights(source, spec, dtype, device)
        model: Model = getattr(importlib.import_module(native.module), native.name)(spec, weights, max_model_len)
        weights.check_all_taken()
    return model


def _load_by_transformers(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    load_format: LoadFormat,
    native_problem: BatonError | None,
) -> Model:
    from engine.models.transformers_load import load_transformers_model

    try:
        return load_transformers_model(spec, dtype, device, max_model_len, load_format)
    except BatonError as error:
        if native_problem is None or error.code is not ErrorCode.UNIMPLEMENTED:
            raise
        message = f"{native_problem.message}; and by transformers' code: {error.message}"
        raise BatonError(native_problem.code, message) from error


def _native_problem(spec: ModelSpec) -> BatonError | None:
    """Why our code cannot run a model: what would silently give other tokens is a reason, too."""
    if spec.architecture not in NATIVE_MODELS:
        return BatonError(
            ErrorCode.UNIMPLEMENTED,
            f"got architecture {spec.architecture}, expected one of {', '.join(sorted(NATIVE_MODELS))}",
        )
    for field, value in spec.special.items():
        if field not in NATIVE_MODELS[spec.architecture].computes:
            return BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{spec.path}/config.json: got {field} = {value!r}, expected {plain_value(field)}; the model code for "
                f"{spec.architecture} does not compute it",
            )
    return None
