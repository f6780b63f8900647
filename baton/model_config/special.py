"""Fields of config.json that change what a model computes: code that does not know one refuses it by name."""

from collections.abc import Sequence
from typing import Any

from baton.model_config.rope import RopeSpec
from baton.model_config.windows import FULL, SLIDING

# Each with the value that asks for nothing: a model that ignores it then computes the right thing. Null means the same.
_PLAIN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "quantization_config": None,
    "clip_qkv": None,
    "attention_chunk_size": None,
    "num_experts": 0,
}


def special_fields(
    config: dict[str, Any], ropes: Sequence[RopeSpec | None], windows: Sequence[int | None], max_position: int
) -> dict[str, Any]:
    """Name and value of each field that asks for more than a plain Llama.

    `rope_type`, `partial_rotary_factor` and `sliding_window` stand for all places and names that they are read from;
    `layer_types` is here with the first type that is neither full attention nor a sliding window.
    """
    special = {name: config[name] for name, plain in _PLAIN.items() if config.get(name) not in (None, plain)}
    for rope in ropes:
        if rope and rope.type != "default":
            special["rope_type"] = rope.type
        if rope and rope.rotary_share != 1.0:
            special["partial_rotary_factor"] = rope.rotary_share
    for window in windows:
        if window is not None and window < max_position:  # one that no sequence outgrows asks for nothing
            special["sliding_window"] = window
    for kind in config.get("layer_types") or ():
        # A sliding layer without a window: what it is to attend to is anybody's guess.
        if kind not in (FULL, SLIDING) or (kind == SLIDING and config.get("sliding_window") is None):
            special.setdefault("layer_types", kind)
    return special


def plain_value(field: str) -> str:
    """For messages: what a field has when it asks for nothing."""
    return {"rope_type": "'default'", "partial_rotary_factor": "1.0", "layer_types": f"{FULL!r} in every layer"}.get(
        field, repr(_PLAIN.get(field))
    )
