"""Llama, and what is computed like it: SmolLM2, and Mistral, which has sliding windows."""

from baton.model_spec import ModelSpec
from engine.models.attention import attention_from
from engine.models.decoder import Decoder, PreNormLayer, pre_norm_layer_from
from engine.models.mlp import gated_mlp_from
from engine.models.weights import Weights


def load(spec: ModelSpec, weights: Weights, max_model_len: int) -> Decoder:
    """LlamaForCausalLM, MistralForCausalLM."""
    return Decoder(spec, weights, max_model_len, _layer)


def _layer(spec: ModelSpec, weights: Weights, index: int) -> PreNormLayer:
    attention = attention_from(spec, weights, index, qkv_bias=spec.attention_bias, out_bias=spec.attention_bias)
    mlp = gated_mlp_from(weights, index, spec.activation, spec.mlp_bias)
    return pre_norm_layer_from(spec, weights, index, attention, mlp)
