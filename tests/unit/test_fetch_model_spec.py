"""What a model folder's config.json may ask for, and what tells one model's folder from another's."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError, ErrorCode
from baton.model_spec import load_model_spec
from tests.fakes.text_model import write_text_model

MIB = 1 << 20


def folder_with(folder: Path, **fields: Any) -> Path:
    write_text_model(folder)
    config_file = folder / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), **fields}))
    return folder


def write_weights(folder: Path, size: int, change_at: int | None = None, name: str = "model.safetensors") -> None:
    """A header, then zeros, of which 100 KiB at `change_at` are ones."""
    header = b'{"w":{}}'
    data = bytearray(len(header).to_bytes(8, "little") + header + bytes(size))
    if change_at is not None:
        data[change_at : change_at + (100 << 10)] = b"\1" * min(100 << 10, len(data) - change_at)
    (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "gelu"}, "got hidden_act = 'gelu', expected 'silu'"),
        ({"mlp_bias": True}, "got mlp_bias = True, expected False"),
        ({"partial_rotary_factor": 0.5}, "got partial_rotary_factor = 0.5, expected 1.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "got partial_rotary_factor = 0.5, expected 1.0"),
        ({"rope_scaling": {"type": "yarn"}}, "got rope_type = 'yarn', expected 'default'"),
        ({"attn_logit_softcapping": 50.0}, "got attn_logit_softcapping = 50.0, expected None"),
        ({"sliding_window": 128}, "got sliding_window = 128, expected none, or one of at least max_position_embedd"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "got layer_types = 'sliding_attention', expected"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BatonError) as raised:
        load_model_spec(folder_with(tmp_path, **fields))
    assert raised.value.code is ErrorCode.FAILED_PRECONDITION
    assert message in raised.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1, "attn_logit_softcapping": None},
        {"mlp_bias": None, "layer_types": None, "rope_scaling": None},
        {"sliding_window": 256},  # as long as the context
        {"sliding_window": 128, "use_sliding_window": False},
        {"layer_types": ["full_attention", "full_attention"]},
    ],
)
def test_what_asks_for_nothing_special_is_served(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert load_model_spec(folder_with(tmp_path, **fields)).num_layers == 2


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_other_weights_of_the_same_shape_are_another_model(tmp_path: Path, size: int, share: float) -> None:
    """The samples of an 8 MiB file leave gaps of 64 KiB at most."""
    folder = write_text_model(tmp_path)
    write_weights(folder, size)
    before = load_model_spec(folder).fingerprint
    write_weights(folder, size)
    assert load_model_spec(folder).fingerprint == before
    write_weights(folder, size, change_at=1024 + int(share * (size - 1024)))
    assert load_model_spec(folder).fingerprint != before


def test_every_weight_file_counts(tmp_path: Path) -> None:
    folder = write_text_model(tmp_path)
    write_weights(folder, MIB)
    write_weights(folder, MIB, name="second.safetensors")
    before = load_model_spec(folder).fingerprint
    write_weights(folder, MIB, change_at=9000, name="second.safetensors")
    assert load_model_spec(folder).fingerprint != before


def test_checksums_stand_for_the_values(tmp_path: Path) -> None:
    folder = write_text_model(tmp_path)
    write_weights(folder, MIB)
    (folder / "SHA256SUMS").write_text("0" * 64 + "  model.safetensors\n")
    before = load_model_spec(folder).fingerprint
    write_weights(folder, MIB, change_at=9000)  # not read
    assert load_model_spec(folder).fingerprint == before
    (folder / "SHA256SUMS").write_text("1" * 64 + "  model.safetensors\n")
    assert load_model_spec(folder).fingerprint != before
