"""Native models give transformers' logits in float32, however the tokens are cut into steps."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.errors import BatonError, ErrorCode
from baton.model_spec import load_model_spec
from baton_kernels.attention import SequenceSlice, plan_batch
from engine.models.registry import load_model

TOLERANCE = 1e-4
BLOCK = 8


class Harness:
    """A model over a pool, fed explicit slices."""

    def __init__(self, folder: Path) -> None:
        spec = load_model_spec(folder)
        self.model = load_model(spec, torch.float32, torch.device("cpu"), spec.max_position_embeddings)
        self.pool = torch.zeros(64, spec.num_kv_heads, spec.num_layers, 2, BLOCK, spec.head_dim)
        self.oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def run(self, parts: list[tuple[torch.Tensor, int, list[int]]]) -> list[torch.Tensor]:
        """Each part: all token ids of a sequence, where the new ones start, its blocks. Logits of the new tokens."""
        slices = [SequenceSlice(start, len(ids) - start, blocks) for ids, start, blocks in parts]
        hidden = self.model.forward(
            torch.cat([ids[start:] for ids, start, _ in parts]),
            torch.cat([torch.arange(start, len(ids)) for ids, start, _ in parts]),
            self.pool,
            plan_batch(slices, self.pool),
        )
        return list(self.model.logits(hidden).split([s.num_tokens for s in slices]))

    @torch.inference_mode()
    def expected(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        return self.oracle(ids[None]).logits[0, start:]


@pytest.fixture(scope="module")
def harness(tiny_llama: Path) -> Harness:
    return Harness(tiny_llama)


def random_ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 320, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100])
def test_whole_prefill(harness: Harness, length: int) -> None:
    ids = random_ids(length, length)
    (got,) = harness.run([(ids, 0, list(range(20, 40)))])
    assert (got - harness.expected(ids, 0)).abs().max() < TOLERANCE


def test_chunked_prefill_then_decode(harness: Harness) -> None:
    ids, blocks, start = random_ids(60, 1), [5, 3, 9, 2, 7, 1, 8, 6], 0
    for size in (8, 16, 13, 1, 1, 20, 1):
        (got,) = harness.run([(ids[: start + size], start, blocks)])
        assert (got - harness.expected(ids[: start + size], start)).abs().max() < TOLERANCE
        start += size


def test_mixed_batch(harness: Harness) -> None:
    first, second, third = random_ids(30, 2), random_ids(11, 3), random_ids(77, 4)
    tables = [list(range(4)), [10, 8], list(range(20, 30))]
    harness.run([(first[:29], 0, tables[0]), (third[:40], 0, tables[2])])
    got = harness.run([(first, 29, tables[0]), (second, 0, tables[1]), (third, 40, tables[2])])
    for logits, ids, start in zip(got, (first, second, third), (29, 0, 40), strict=True):
        assert (logits - harness.expected(ids, start)).abs().max() < TOLERANCE


def test_refuses_what_it_does_not_know(tiny_llama: Path, tmp_path: Path) -> None:
    text = (tiny_llama / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("LlamaForCausalLM", "MambaForCausalLM"))
    with pytest.raises(BatonError, match="got architecture MambaForCausalLM, expected one of LlamaForCausalLM"):
        load_model(load_model_spec(tmp_path), torch.float32, torch.device("cpu"), 16)


def test_refuses_weights_that_do_not_fit_the_configuration(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tiny_llama / "model.safetensors")
    text = (tiny_llama / "config.json").read_text()
    for layers, problem in (("1", "tensors that this model code does not use"), ("3", "has no tensor model.layers.2")):
        (tmp_path / "config.json").write_text(text.replace('"num_hidden_layers": 2', f'"num_hidden_layers": {layers}'))
        with pytest.raises(BatonError, match=problem) as caught:
            load_model(load_model_spec(tmp_path), torch.float32, torch.device("cpu"), 16)
        assert caught.value.code is ErrorCode.FAILED_PRECONDITION
