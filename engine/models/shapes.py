"""The shape of a tensor by its name in a Hugging Face folder: for the families that this engine has code for."""

import re
from collections.abc import Mapping

from baton.model_config.moe import MoeSpec
from baton.model_spec import ModelSpec

Shape = tuple[int, ...]
_EXPERT = re.compile(r"\.experts\.\d+\.")


def shape_of(spec: ModelSpec, name: str) -> Shape | None:
    """What config.json implies; None for a name that none of the families has."""
    module, _, kind = name.rpartition(".")
    if spec.moe and _EXPERT.search(name):
        weights = _experts(spec, spec.moe)
    else:
        weights = {**_attention(spec), **_dense(spec), **_whole_width(spec)}
    shape = weights.get(module.rpartition(".")[2])
    if shape is None:
        return None
    return {"weight": shape, "bias": shape[:1]}.get(kind)


def _attention(spec: ModelSpec) -> Mapping[str, Shape]:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "q_proj": (queries, spec.hidden_size),
        "k_proj": (keys, spec.hidden_size),
        "v_proj": (keys, spec.hidden_size),
        "qkv_proj": (queries + 2 * keys, spec.hidden_size),
        "o_proj": (spec.hidden_size, queries),
        "q_norm": (spec.head_dim,),
        "k_norm": (spec.head_dim,),
    }


def _dense(spec: ModelSpec) -> Mapping[str, Shape]:
    return {
        "gate_proj": (spec.intermediate_size, spec.hidden_size),
        "up_proj": (spec.intermediate_size, spec.hidden_size),
        "gate_up_proj": (2 * spec.intermediate_size, spec.hidden_size),
        "down_proj": (spec.hidden_size, spec.intermediate_size),
    }


def _whole_width(spec: ModelSpec) -> Mapping[str, Shape]:
    norms = "norm input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
    return {
        "embed_tokens": (spec.vocab_size, spec.hidden_size),
        "lm_head": (spec.vocab_size, spec.hidden_size),
        **dict.fromkeys(norms.split(), (spec.hidden_size,)),
        **({"gate": (spec.moe.num_experts, spec.hidden_size)} if spec.moe else {}),  # chooses experts
    }


def _experts(spec: ModelSpec, moe: MoeSpec) -> Mapping[str, Shape]:
    into, out = (moe.intermediate_size, spec.hidden_size), (spec.hidden_size, moe.intermediate_size)
    return {"gate_proj": into, "up_proj": into, "down_proj": out, "w1": into, "w3": into, "w2": out}
