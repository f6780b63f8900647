"""Native models give transformers' logits in float32, however the tokens are cut into steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from baton.errors import BatonError, ErrorCode
from baton.model_spec import load_model_spec
from baton_kernels.attention import SequenceSlice, plan_batch
from engine.models.registry import NATIVE_MODELS, load_model
from tests.fakes.tiny_models import CASES, CONTEXT, write_tiny_model

TOLERANCE = 1e-4
BLOCK = 8
TABLES = ([5, 3, 9, 2, 7, 1, 8, 6, 0], [14, 10, 13, 11, 12, 15, 19, 16, 17], list(range(20, 29)))  # of block ids


class Part(NamedTuple):
    """New tokens of one of the three sequences."""

    sequence: int
    start: int
    end: int


class Harness:
    """A model over a pool, three sequences for it, and the logits that transformers gives for them."""

    def __init__(self, case: str, folder: Path) -> None:
        oracle = write_tiny_model(case, folder)
        spec = load_model_spec(folder)
        self.model = load_model(spec, torch.float32, torch.device("cpu"), CONTEXT)
        self.pool = torch.zeros(30, spec.num_kv_heads, spec.num_layers, 2, BLOCK, spec.head_dim)
        self.ids = torch.randint(3, 320, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            self.expected = oracle(self.ids).logits

    @torch.inference_mode()
    def check_step(self, parts: Sequence[Part]) -> None:
        """Runs the parts as one batch, and compares all their logits."""
        slices = [SequenceSlice(part.start, part.end - part.start, TABLES[part.sequence]) for part in parts]
        hidden = self.model.forward(
            torch.cat([self.ids[part.sequence, part.start : part.end] for part in parts]),
            torch.cat([torch.arange(part.start, part.end) for part in parts]),
            self.pool,
            plan_batch(slices, self.pool),
        )
        expected = torch.cat([self.expected[part.sequence, part.start : part.end] for part in parts])
        assert (self.model.logits(hidden) - expected).abs().max() < TOLERANCE


@pytest.fixture(scope="module", params=CASES)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(request.param, tmp_path_factory.mktemp("tiny"))


def test_whole_prefill(harness: Harness) -> None:
    harness.check_step([Part(0, 0, CONTEXT)])


@pytest.mark.parametrize("size", [7, 8, 30])
def test_chunked_prefill(harness: Harness, size: int) -> None:
    for start in range(0, CONTEXT, size):
        harness.check_step([Part(0, start, min(start + size, CONTEXT))])


def test_mixed_batches(harness: Harness) -> None:
    """Prefills, chunks and decodes of different sequences in one step."""
    harness.check_step([Part(0, 0, 29), Part(2, 0, 40)])
    harness.check_step([Part(0, 29, 30), Part(1, 0, 11), Part(2, 40, 71)])
    harness.check_step([Part(1, 11, 12), Part(0, 30, CONTEXT), Part(2, 71, 72)])


def test_decodes(harness: Harness) -> None:
    """All three, one token each, at different lengths."""
    starts = (1, 14, 50)
    harness.check_step([Part(sequence, 0, start) for sequence, start in enumerate(starts)])
    for step in range(10):
        harness.check_step([Part(sequence, start + step, start + step + 1) for sequence, start in enumerate(starts)])


def test_every_native_model_is_compared() -> None:
    families = {family.removesuffix("Text") for family, _ in CASES.values()}
    assert {f"{family}ForCausalLM" for family in families} == set(NATIVE_MODELS)


def test_refuses_what_it_does_not_know(tiny_llama: Path, tmp_path: Path) -> None:
    text = (tiny_llama / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("LlamaForCausalLM", "MambaForCausalLM"))
    with pytest.raises(BatonError, match=r"got architecture MambaForCausalLM, expected one of .*LlamaForCausalLM"):
        load_model(load_model_spec(tmp_path), torch.float32, torch.device("cpu"), 16)


def test_refuses_weights_that_do_not_fit_the_configuration(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tiny_llama / "model.safetensors")
    text = (tiny_llama / "config.json").read_text()
    for layers, problem in (("1", "tensors that this model code does not use"), ("3", "has no tensor model.layers.2")):
        (tmp_path / "config.json").write_text(text.replace('"num_hidden_layers": 2', f'"num_hidden_layers": {layers}'))
        with pytest.raises(BatonError, match=problem) as caught:
            load_model(load_model_spec(tmp_path), torch.float32, torch.device("cpu"), 16)
        assert caught.value.code is ErrorCode.FAILED_PRECONDITION
