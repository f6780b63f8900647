"""What two KV layouts must share, and what the refusal says."""

import msgspec
import pytest

from baton.errors import BatonError, ErrorCode
from baton.types import KvLayout
from kv_transfer.layout import check_compatible

LAYOUT = KvLayout(
    num_layers=30, num_kv_heads=4, head_dim=64, block_size=16, dtype="float32", model_fingerprint="f00d", tp_size=2
)
OTHER_VALUES = {
    "version": 2,
    "model_fingerprint": "beef",
    "num_layers": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "block_size": 32,
    "dtype": "bfloat16",
    "order": "layer,kv,token,head,dim",
    "tp_rank": 1,
    "tp_size": 4,
    "rope_variant": "long",
}


def test_equal_layouts_are_compatible() -> None:
    check_compatible(LAYOUT, msgspec.structs.replace(LAYOUT))


def test_every_field_is_compared() -> None:
    assert set(OTHER_VALUES) == set(KvLayout.__struct_fields__)


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_a_differing_field_is_refused_by_name(field: str) -> None:
    src = msgspec.structs.replace(LAYOUT, **{field: OTHER_VALUES[field]})
    with pytest.raises(BatonError) as caught:
        check_compatible(src, LAYOUT)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION
    expected = (
        f"kv layout: {field}: got {OTHER_VALUES[field]} on prefill, expected {getattr(LAYOUT, field)} as on decode; "
    )
    assert caught.value.message.startswith(expected)


def test_the_message_tells_what_to_change() -> None:
    with pytest.raises(BatonError) as caught:
        check_compatible(msgspec.structs.replace(LAYOUT, dtype="bfloat16"), LAYOUT)
    assert caught.value.message == (
        "kv layout: dtype: got bfloat16 on prefill, expected float32 as on decode; start both with the same --dtype"
    )


def test_the_cause_is_named_before_its_effects() -> None:
    src = msgspec.structs.replace(LAYOUT, model_fingerprint="beef", num_layers=32, head_dim=128)
    with pytest.raises(BatonError, match="model_fingerprint"):
        check_compatible(src, LAYOUT)
