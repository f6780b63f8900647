"""Rotary position embedding as config.json describes it, with every default filled in."""

import math
from typing import Any

import msgspec

_SCALED_FROM_ORIGINAL = ("llama3", "yarn", "longrope")


class RopeSpec(msgspec.Struct, frozen=True):
    """One rotary embedding; what `type` does not use has its neutral value. Numerics: `engine/models/rope.py`."""

    type: str = "default"  # or "linear", "dynamic", "yarn", "longrope", "llama3", or one that no code here knows
    theta: float = 10000.0
    rotary_share: float = 1.0  # of a head's elements, the first ones; the rest is not rotated
    factor: float = 1.0
    original_max_position: int = 0  # tokens that the model was trained on before it was stretched
    attention_factor: float = 1.0  # on cosines and sines
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 1.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    short_factors: tuple[float, ...] = ()  # longrope, one a frequency
    long_factors: tuple[float, ...] = ()

    def reach(self, max_position_embeddings: int) -> int:
        """Tokens of a sequence up to which this embedding is meant to be used."""
        if self.type == "dynamic":  # stretches only behind max_position_embeddings
            return int(max_position_embeddings * self.factor)
        if self.type == "yarn":  # often switched on in a folder whose max_position_embeddings stays as it was
            return max(max_position_embeddings, int(self.original_max_position * self.factor))
        return max_position_embeddings

    def variant(self, max_model_len: int) -> str:
        """Names the embedding among those that this spec has by the length that is served; "" where it has one only.

        transformers chooses by the length of the sequence at hand, anew in every step, which would need keys of several
        kinds in one cache. KV of different variants must not meet.
        """
        if self.type == "longrope":
            return "long" if max_model_len > self.original_max_position else "short"
        if self.type == "dynamic":
            return f"for {max_model_len} tokens" if max_model_len > self.original_max_position else "unstretched"
        return ""


def read_rope(config: dict[str, Any]) -> tuple[RopeSpec, RopeSpec | None]:
    """The embedding of all layers, and that of layers with a sliding window where they have one of their own."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if "full_attention" in parameters or "sliding_attention" in parameters:
        local = parameters.get("sliding_attention") or {}
        whole = {**(parameters.get("full_attention") or {}), **scaling}
    else:
        local, whole = {}, {**parameters, **scaling}
    spec = _read(whole, config, config.get("rope_theta"))
    local_theta = local.get("rope_theta", config.get("rope_local_base_freq"))
    if local_theta is None and not local:
        return spec, None
    return spec, _read(local, config, local_theta)


def _read(parameters: dict[str, Any], config: dict[str, Any], theta: float | None) -> RopeSpec:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "su" or (kind == "yarn" and "long_factor" in parameters):  # as early Phi-3 folders say it
        kind = "longrope"
    trained = config["max_position_embeddings"]
    original = trained
    if kind in _SCALED_FROM_ORIGINAL:
        original = config.get("original_max_position_embeddings") or (
            parameters.get("original_max_position_embeddings") or trained
        )
    factor = parameters.get("factor")
    if factor is None:
        factor = trained / original
    return RopeSpec(
        type=kind,
        theta=float(parameters.get("rope_theta") or theta or RopeSpec().theta),
        rotary_share=float(_first(parameters.get("partial_rotary_factor"), config.get("partial_rotary_factor"), 1.0)),
        factor=float(factor),
        original_max_position=original,
        attention_factor=_attention_factor(kind, parameters, float(factor), original),
        low_freq_factor=float(parameters.get("low_freq_factor") or 1.0),
        high_freq_factor=float(parameters.get("high_freq_factor") or 1.0),
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        truncate=_first(parameters.get("truncate"), True),
        short_factors=tuple(parameters.get("short_factor") or ()),
        long_factors=tuple(parameters.get("long_factor") or ()),
    )


def _attention_factor(kind: str, parameters: dict[str, Any], factor: float, original: int) -> float:
    """Makes up for attention that is flatter in long texts (YaRN, Peng et al., 2023; LongRoPE, Ding et al., 2024)."""
    given = parameters.get("attention_factor")
    if kind not in ("yarn", "longrope"):
        return 1.0
    if given is not None:
        return float(given)
    if factor <= 1.0:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1.0 + math.log(factor) / math.log(original))
    upper, lower = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if upper and lower:  # DeepSeek's
        return _yarn_scale(factor, upper) / _yarn_scale(factor, lower)
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
