"""Whether KV written by one worker can be read by another: refused with a named reason before any block moves."""

from baton.errors import BatonError, ErrorCode
from baton.types import KvLayout

_RELEASE = "run the same Baton release on both"
_MODEL = "serve the same model on both"

# Causes before effects: another version may mean other fields, another model other shapes.
_REMEDIES = {
    "version": _RELEASE,
    "order": f"{_RELEASE}, with the same --model-impl and the same extras installed",
    "model_fingerprint": _MODEL,
    "num_layers": _MODEL,
    "num_kv_heads": _MODEL,
    "head_dim": _MODEL,
    "dtype": "start both with the same --dtype",
    "block_size": "start both with the same --block-size",
    "rope_variant": "start both with the same --max-model-len: it chooses how this model's positions are stretched",
    "tp_size": _RELEASE,  # this one has no tensor parallelism
    "tp_rank": _RELEASE,
}


def check_compatible(src: KvLayout, dst: KvLayout) -> None:
    """Passes when blocks of `src` (prefill) can be copied byte for byte into blocks of `dst` (decode).

    Raises:
        BatonError: FAILED_PRECONDITION naming the first field that differs.
    """
    for field, remedy in _REMEDIES.items():
        got, expected = getattr(src, field), getattr(dst, field)
        if got != expected:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"kv layout: {field}: got {got} on prefill, expected {expected} as on decode; {remedy}",
            )
