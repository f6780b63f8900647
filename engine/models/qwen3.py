"""Qwen 3, dense and with experts: queries and keys are normed head by head."""

from baton.model_spec import ModelSpec
from engine.models.attention import Attention, attention_from
from engine.models.decoder import Decoder, PreNormLayer, pre_norm_layer_from
from engine.models.mlp import Mlp, gated_mlp_from
from engine.models.moe import ExpertNames, sparse_mlp_from
from engine.models.norm import norm_of_heads
from engine.models.weights import Weights

_EXPERT = ExpertNames("gate_proj", "up_proj", "down_proj")


def load(spec: ModelSpec, weights: Weights, max_model_len: int) -> Decoder:
    """Qwen3ForCausalLM, Qwen3MoeForCausalLM."""
    return Decoder(spec, weights, max_model_len, _layer)


def _layer(spec: ModelSpec, weights: Weights, index: int) -> PreNormLayer:
    return pre_norm_layer_from(spec, weights, index, _attention(spec, weights, index), _mlp(spec, weights, index))


def _attention(spec: ModelSpec, weights: Weights, index: int) -> Attention:
    prefix, bias = f"model.layers.{index}.self_attn.", spec.attention_bias
    query_weight, key_weight = (weights.take(prefix + name) for name in ("q_norm.weight", "k_norm.weight"))
    norm = norm_of_heads(query_weight, key_weight, spec.num_heads, spec.num_kv_heads, spec.norm_eps)
    return attention_from(spec, weights, index, qkv_bias=bias, out_bias=bias, head_norm=norm)


def _mlp(spec: ModelSpec, weights: Weights, index: int) -> Mlp:
    if spec.moe and index in spec.moe.layers:
        return sparse_mlp_from(weights, f"model.layers.{index}.mlp.", _EXPERT, spec.moe)
    return gated_mlp_from(weights, index, spec.activation)
