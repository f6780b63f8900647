"""Phi 3 and Phi 4 mini: Llama with stacked projections, and with heads that may be rotated in part."""

import torch
from torch import Tensor

from baton.model_spec import ModelSpec
from engine.models.attention import Attention
from engine.models.decoder import Decoder, PreNormLayer, pre_norm_layer_from
from engine.models.linear import Linear
from engine.models.mlp import GatedMlp
from engine.models.rope import rotated
from engine.models.weights import Weights


def load(spec: ModelSpec, weights: Weights, max_model_len: int) -> Decoder:
    """Phi3ForCausalLM."""
    return Decoder(spec, weights, max_model_len, _layer)


def _layer(spec: ModelSpec, weights: Weights, index: int) -> PreNormLayer:
    prefix = f"model.layers.{index}."
    qkv = _order_of_pairs(weights.take(prefix + "self_attn.qkv_proj.weight"), spec)
    attention = Attention(spec, index, Linear(qkv), weights.linear([prefix + "self_attn.o_proj"]))
    gate, up = weights.take(prefix + "mlp.gate_up_proj.weight").chunk(2)
    mlp = GatedMlp(Linear(gate), Linear(up), weights.linear([prefix + "mlp.down_proj"]), spec.activation)
    return pre_norm_layer_from(spec, weights, index, attention, mlp)


def _order_of_pairs(qkv: Tensor, spec: ModelSpec) -> Tensor:
    """Moves the unrotated elements of queries and keys, so that pairs are half a head apart, as everywhere else.

    Scores are sums over a head's elements and do not depend on their order, as long as queries and keys agree.

    Args:
        qkv: [(heads + 2 * kv_heads) * head_dim, hidden]
    """
    head_dim, dim = spec.head_dim, rotated(spec.rope, spec.head_dim)
    if dim == head_dim:
        return qkv
    elements = torch.arange(head_dim, device=qkv.device)
    rest = elements[dim:]
    order = torch.cat((elements[: dim // 2], rest[: len(rest) // 2], elements[dim // 2 : dim], rest[len(rest) // 2 :]))
    heads = qkv.view(-1, head_dim, qkv.shape[1])
    rotated_heads = spec.num_heads + spec.num_kv_heads
    return torch.cat((heads[:rotated_heads, order], heads[rotated_heads:])).view(qkv.shape)
