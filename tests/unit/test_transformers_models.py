"""Models by transformers' code on the paged pool: transformers' own logits, or a refusal that says why."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from baton.errors import BatonError, ErrorCode
from baton.load_options import LoadFormat, ModelImpl
from baton.model_spec import load_model_spec
from baton_kernels.attention import SequenceSlice, plan_batch
from engine.models.base import Model
from engine.models.registry import load_model
from engine.models.transformers_model import TransformersModel

TOLERANCE = 1e-4
BLOCK, VOCAB, CONTEXT = 8, 320, 256
CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GATED = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
GPT = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "initializer_range": 0.2}
SERVED: dict[str, dict[str, Any]] = {
    "gpt_neox": {**SIZES, "intermediate_size": 96, "rotary_pct": 0.25},
    "falcon": {**SIZES, "multi_query": True, "alibi": False, "bias": False},
    "falcon-grouped": {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "bias": True},
    "falcon-serial": {**SIZES, "multi_query": False, "parallel_attn": False, "alibi": False},
    "olmo2": GATED,
    "starcoder2": {**GATED, "sliding_window": 16},
    "gemma2": {**GATED, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "cohere": {**GATED, "logit_scale": 0.25, "tie_word_embeddings": True},
    "gpt2": {**GPT, "bos_token_id": 1, "eos_token_id": 2},
    "opt": {**SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64},
}


def write_model(folder: Path, name: str, fields: dict[str, Any]) -> Path:
    """A random model of transformers in float32."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.partition("-")[0], **fields)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


class Harness:
    """A model over a pool, fed explicit slices, beside transformers' own."""

    def __init__(self, folder: Path, impl: ModelImpl = ModelImpl.TRANSFORMERS) -> None:
        spec = load_model_spec(folder)
        self.model = load_model(spec, torch.float32, CPU, CONTEXT, impl=impl)
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
    def expected(self, ids: torch.Tensor) -> torch.Tensor:
        """Transformers' logits, which must say something."""
        logits = self.oracle(ids[None]).logits[0]
        assert logits.std() > 0.1
        return logits


@pytest.fixture(scope="module", params=SERVED)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    folder = write_model(tmp_path_factory.mktemp(request.param), request.param, SERVED[request.param])
    return Harness(folder)


def random_ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 8, 100])
def test_whole_prefill(harness: Harness, length: int) -> None:
    ids = random_ids(length, length)
    (got,) = harness.run([(ids, 0, list(range(20, 40)))])
    assert (got - harness.expected(ids)).abs().max() < TOLERANCE


def test_chunked_prefill_then_decode(harness: Harness) -> None:
    ids, blocks, start = random_ids(60, 1), [5, 3, 9, 2, 7, 1, 8, 6], 0
    expected = harness.expected(ids)
    for size in (8, 16, 13, 1, 1, 20, 1):
        (got,) = harness.run([(ids[: start + size], start, blocks)])
        assert (got - expected[start : start + size]).abs().max() < TOLERANCE
        start += size


def test_mixed_batch(harness: Harness) -> None:
    first, second, third = random_ids(30, 2), random_ids(11, 3), random_ids(77, 4)
    tables = [list(range(4)), [10, 8], list(range(20, 30))]
    harness.run([(first[:29], 0, tables[0]), (third[:40], 0, tables[2])])
    got = harness.run([(first, 29, tables[0]), (second, 0, tables[1]), (third, 40, tables[2])])
    for logits, ids, start in zip(got, (first, second, third), (29, 0, 40), strict=True):
        assert (logits - harness.expected(ids)[start:]).abs().max() < TOLERANCE


def test_both_implementations_of_llama_agree(tiny_llama: Path) -> None:
    ids = random_ids(50, 5)
    (native,) = Harness(tiny_llama, ModelImpl.NATIVE).run([(ids, 0, list(range(20, 40)))])
    (other,) = Harness(tiny_llama, ModelImpl.TRANSFORMERS).run([(ids, 0, list(range(20, 40)))])
    assert (native - other).abs().max() < TOLERANCE


def load(folder: Path, load_format: LoadFormat = LoadFormat.AUTO, impl: ModelImpl = ModelImpl.AUTO) -> Model:
    spec = load_model_spec(folder, load_format=load_format)
    return load_model(spec, torch.float32, CPU, CONTEXT, load_format, impl)


def test_auto_takes_our_code_where_there_is_some(tiny_llama: Path, tmp_path: Path) -> None:
    assert not isinstance(load(tiny_llama), TransformersModel)
    assert isinstance(load(write_model(tmp_path, "olmo2", SERVED["olmo2"])), TransformersModel)


def test_native_alone_refuses_what_it_has_no_code_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "gpt_neox", SERVED["gpt_neox"])
    with pytest.raises(BatonError, match="got architecture GPTNeoXForCausalLM, expected one of") as caught:
        load(folder, impl=ModelImpl.NATIVE)
    assert caught.value.code is ErrorCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("falcon", {**SERVED["falcon"], "alibi": True}, "it has alibi"),
        ("bloom", {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4}, "2 of its 2 layers, .* keep no"),
        ("mamba", {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2}, "no field 'num_attention_heads'"),
        (
            "llama",
            {
                **GATED,
                "max_position_embeddings": 128,
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            },
            "'dynamic'",
        ),
        (
            "gpt_oss",
            {**GATED, "head_dim": 16, "num_local_experts": 4, "sliding_window": 16},
            "its attention takes s_aux",
        ),
        ("stablelm", GATED, "its layers do not pass keyword arguments on to their attention function"),
        (
            "deepseek_v3",
            {
                **GATED,
                "num_key_value_heads": 4,
                "moe_intermediate_size": 32,
                "n_routed_experts": 4,
                "n_group": 2,
                "topk_group": 1,
                "num_experts_per_tok": 2,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 16,
                "v_head_dim": 16,
            },
            "layer 0 has (keys|values) of 4 heads of .* elements, where the KV pool has",
        ),
    ],
)
def test_what_cannot_run_on_paged_attention_is_refused_with_the_reason(
    tmp_path: Path, name: str, fields: dict[str, Any], reason: str
) -> None:
    if name in ("bloom", "mamba"):
        fields = {**fields, "max_position_embeddings": CONTEXT}
    folder = write_model(tmp_path, name, fields)
    with pytest.raises(BatonError, match=reason):
        load(folder, impl=ModelImpl.TRANSFORMERS)


def test_a_model_that_forgets_earlier_steps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that numbers positions from 0 in every call."""
    folder = write_model(tmp_path, "llama", GATED)
    forward = transformers.LlamaModel.forward

    def from_zero(self: Any, *, position_ids: torch.Tensor, **others: Any) -> Any:
        return forward(self, position_ids=torch.arange(position_ids.shape[1])[None], **others)

    monkeypatch.setattr(transformers.LlamaModel, "forward", from_zero)
    with pytest.raises(BatonError, match="in steps, it computes other hidden states than at once"):
        load(folder, impl=ModelImpl.TRANSFORMERS)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "olmo2", SERVED["olmo2"])
    text = (folder / "config.json").read_text()
    for layers, problem in (("1", "has .* tensors that the model does not use"), ("3", "lacks .* tensors, such as")):
        (folder / "config.json").write_text(text.replace('"num_hidden_layers": 2', f'"num_hidden_layers": {layers}'))
        with pytest.raises(BatonError, match=problem) as caught:
            load(folder, impl=ModelImpl.TRANSFORMERS)
        assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path, "olmo2", SERVED["olmo2"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BatonError, match=r"transformers is not installed; pip install 'baton\[transformers\]'"):
        load(folder)
