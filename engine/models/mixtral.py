"""Mixtral: Mistral with a mixture of experts in every layer."""

from baton.model_spec import ModelSpec
from engine.models.attention import attention_from
from engine.models.decoder import Decoder, PreNormLayer, pre_norm_layer_from
from engine.models.moe import ExpertNames, sparse_mlp_from
from engine.models.weights import Weights

_EXPERT = ExpertNames(gate="w1", up="w3", down="w2")


def load(spec: ModelSpec, weights: Weights, max_model_len: int) -> Decoder:
    """MixtralForCausalLM."""
    return Decoder(spec, weights, max_model_len, _layer)


def _layer(spec: ModelSpec, weights: Weights, index: int) -> PreNormLayer:
    assert spec.moe is not None, "the reader of config.json gives Mixtral a number of experts"
    mlp = sparse_mlp_from(weights, f"model.layers.{index}.block_sparse_moe.", _EXPERT, spec.moe)
    return pre_norm_layer_from(spec, weights, index, attention_from(spec, weights, index), mlp)
