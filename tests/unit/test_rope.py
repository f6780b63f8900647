"""Stretched rotary embeddings have transformers' frequencies and factors, with the parameters of published models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from baton.errors import BatonError
from baton.model_config.rope import RopeSpec, read_rope
from baton.model_spec import load_model_spec
from engine.models.rope import frequencies
from tests.fakes.text_model import write_text_model

HEAD_DIM = 64
FACTORS = [1.0 + index / 8 for index in range(32)]
LONGROPE = {"short_factor": FACTORS, "long_factor": [2 * factor for factor in FACTORS]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

# Parameters, rope_theta, max_position_embeddings, length served.
CASES: list[tuple[dict[str, Any], float, int, int]] = [
    ({"rope_type": "linear", "factor": 8.0}, 1e4, 4096, 4096),
    ({"rope_type": "dynamic", "factor": 4.0}, 1e4, 4096, 2048),
    ({"rope_type": "dynamic", "factor": 4.0}, 1e4, 4096, 10000),
    ({"rope_type": "llama3", "factor": 8.0, **LLAMA3}, 5e5, 131072, 131072),  # Llama 3.1
    ({"rope_type": "llama3", "factor": 32.0, **LLAMA3}, 5e5, 131072, 131072),  # Llama 3.2
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 1e6, 32768, 100000),  # Qwen 2.5
    ({"rope_type": "yarn", "factor": 4.0}, 1e6, 4096, 16384),
    (
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 1.5,
        },
        1.5e5,
        131072,
        131072,
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
        1e4,
        163840,
        4096,
    ),
    ({"rope_type": "longrope", **LONGROPE, "original_max_position_embeddings": 4096}, 1e4, 131072, 4096),  # Phi 3
    ({"rope_type": "longrope", **LONGROPE, "original_max_position_embeddings": 4096}, 1e4, 131072, 4097),
    ({"rope_type": "longrope", **LONGROPE, "factor": 2.0, "attention_factor": 1.2}, 1e4, 4096, 4096),
]


@pytest.mark.parametrize(("parameters", "theta", "max_position", "length"), CASES)
def test_frequencies(parameters: dict[str, Any], theta: float, max_position: int, length: int) -> None:
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        rope_parameters={**parameters, "rope_theta": theta},
        max_position_embeddings=max_position,
    )
    rope_type = config.rope_parameters["rope_type"]
    expected, factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=length)
    written = {"rope_scaling": parameters, "rope_theta": theta, "max_position_embeddings": max_position}
    spec, local = read_rope(written)
    assert local is None
    torch.testing.assert_close(frequencies(spec, HEAD_DIM, length), expected, rtol=2e-6, atol=0)
    assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("scaling", "reach"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}, 256),  # max_position_embeddings
        ({"type": "dynamic", "factor": 3.0}, 768),
        ({"type": "linear", "factor": 3.0}, 256),
        ({"type": "llama3", "factor": 8.0}, 256),
    ],
)
def test_how_long_a_sequence_may_be(tmp_path: Path, scaling: dict[str, Any], reach: int) -> None:
    config_file = write_text_model(tmp_path) / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "rope_scaling": scaling}))
    assert load_model_spec(tmp_path).max_position_embeddings == reach


def test_variants_are_told_apart_by_the_length_served() -> None:
    longrope, dynamic = (RopeSpec(type=kind, original_max_position=100) for kind in ("longrope", "dynamic"))
    assert [longrope.variant(length) for length in (50, 100, 101, 200)] == ["short", "short", "long", "long"]
    assert dynamic.variant(50) == dynamic.variant(100) != dynamic.variant(101) != dynamic.variant(200)
    assert RopeSpec(type="yarn", original_max_position=100).variant(200) == ""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RopeSpec(type="mrope"), "got rope_type = 'mrope', expected one of default"),
        (RopeSpec(type="longrope", short_factors=(1.0,)), "got 1 rope factors in short_factor and 0 in long_factor"),
    ],
)
def test_what_cannot_be_computed_is_refused(spec: RopeSpec, message: str) -> None:
    with pytest.raises(BatonError, match=message):
        frequencies(spec, HEAD_DIM, 100)
