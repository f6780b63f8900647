"""Qwen 2 and 2.5: Llama with biases on queries, keys and values."""

from baton.model_spec import ModelSpec
from engine.models.attention import attention_from
from engine.models.decoder import Decoder, PreNormLayer, pre_norm_layer_from
from engine.models.mlp import gated_mlp_from
from engine.models.weights import Weights


def load(spec: ModelSpec, weights: Weights, max_model_len: int) -> Decoder:
    """Qwen2ForCausalLM."""
    return Decoder(spec, weights, max_model_len, _layer)


def _layer(spec: ModelSpec, weights: Weights, index: int) -> PreNormLayer:
    attention = attention_from(spec, weights, index, qkv_bias=True)
    return pre_norm_layer_from(spec, weights, index, attention, gated_mlp_from(weights, index, spec.activation))
