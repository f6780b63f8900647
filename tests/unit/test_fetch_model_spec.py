"""What a model folder's config.json may ask for, and what tells one model's folder from another's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import BatonError, ErrorCode
from baton.model_spec import load_model_spec
from engine.models.registry import load_model
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
    ("fields", "special"),
    [
        ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}),
        ({"mlp_bias": True}, {"mlp_bias": True}),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, {"partial_rotary_factor": 0.5}),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, {"rope_type": "yarn"}),
        ({"attn_logit_softcapping": 50.0}, {"attn_logit_softcapping": 50.0}),
        ({"sliding_window": 128}, {"sliding_window": 128}),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {"layer_types": "sliding_attention"}),
        ({"layer_types": ["full_attention", "linear_attention"]}, {"layer_types": "linear_attention"}),
        ({"num_local_experts": 4, "num_experts_per_tok": 2}, {"num_experts": 4}),
        ({"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1, "attn_logit_softcapping": None}, {}),
        ({"mlp_bias": None, "layer_types": None, "rope_scaling": None, "num_experts": 0}, {}),
        ({"sliding_window": 256}, {}),  # as long as the context
        ({"sliding_window": 128, "use_sliding_window": False}, {}),
        ({"layer_types": ["full_attention", "full_attention"]}, {}),
    ],
)
def test_what_asks_for_more_than_a_plain_model_is_named(
    tmp_path: Path, fields: dict[str, Any], special: dict[str, Any]
) -> None:
    assert load_model_spec(folder_with(tmp_path, **fields)).special == special


def test_what_the_model_code_does_not_compute_is_refused(tmp_path: Path) -> None:
    spec = load_model_spec(folder_with(tmp_path, sliding_window=128))
    with pytest.raises(BatonError, match="got sliding_window = 128, expected None; the model code for Llama") as raised:
        load_model(spec, torch.float32, torch.device("cpu"), 16)
    assert raised.value.code is ErrorCode.FAILED_PRECONDITION


def test_an_unknown_architecture_has_a_spec(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_embd": 48, "n_layer": 3, "n_head": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_positions": 64}))
    spec = load_model_spec(tmp_path)
    assert (spec.architecture, spec.hidden_size, spec.num_layers, spec.head_dim) == ("GPT2LMHeadModel", 48, 3, 12)


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
