"""Fixtures that several folders of tests share."""

import os
from pathlib import Path

import pytest

from engine.child import core_environment

os.environ.update(core_environment())  # many tests compute in this process; read when torch is loaded

import torch


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    """So that results do not depend on the machine's size."""
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The packaged small model's folder; `make test` fetches it first."""
    from baton.fetch import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers, saved by transformers in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_theta=1000.0,
        tie_word_embeddings=False,
        eos_token_id=2,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
