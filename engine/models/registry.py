"""Which code serves which architecture of config.json; imports it only when asked for."""

import importlib
from pathlib import Path

import torch

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from engine.models.base import Model
from engine.models.weights import Weights

_ARCHITECTURES = {"LlamaForCausalLM": ("engine.models.llama", "Llama")}


def load_model(spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_model_len: int) -> Model:
    """Builds and fills a model.

    Raises:
        BatonError: UNIMPLEMENTED for an unknown architecture, FAILED_PRECONDITION when the weights do not fit.
    """
    if spec.architecture not in _ARCHITECTURES:
        raise BatonError(
            ErrorCode.UNIMPLEMENTED,
            f"got architecture {spec.architecture}, expected one of {', '.join(sorted(_ARCHITECTURES))}",
        )
    module, name = _ARCHITECTURES[spec.architecture]
    weights = Weights(Path(spec.path), dtype, device)
    with torch.inference_mode():
        model: Model = getattr(importlib.import_module(module), name)(spec, weights, max_model_len)
    weights.check_all_taken()
    return model
