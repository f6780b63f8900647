"""Conversion of a GGUF: exact weights in Hugging Face's order, its configuration, its tokenizer."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fetch_samples import HEAD_DIM, HEADS, KV_HEADS, LAYERS, TEMPLATE, hf_weights, permuted, write_gguf
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, ReaderTensor
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.errors import BatonError, ErrorCode
from baton.fetch.checksums import SUMS_FILE, quick_problem, verify_sums
from baton.fetch.convert import convert_gguf
from baton.fetch.gguf_metadata import GgufMetadata, read_metadata
from baton.fetch.gguf_tokenizer import build_tokenizer
from baton.fetch.gguf_weights import convert_weights, unpermute
from baton.fetch.local import validate_folder
from baton.fetch.progress import no_progress
from baton.load_options import ModelImpl
from baton_kernels.attention import SequenceSlice, plan_batch
from engine.models.registry import load_model


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("gguf")
    write_gguf(work / "tiny.gguf")
    folder = work / "model"
    folder.mkdir()
    convert_gguf(work / "tiny.gguf", folder)
    return folder


def test_weights_come_out_exactly(converted: Path) -> None:
    got, expected = load_file(converted / "model.safetensors"), hf_weights()
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_array_equal(got[name], weight, err_msg=name)


def test_unpermute_undoes_the_row_order_of_gguf() -> None:
    weight = np.arange(HEADS * HEAD_DIM * 3, dtype=np.float32).reshape(HEADS * HEAD_DIM, 3)
    assert not np.array_equal(permuted(weight, HEADS), weight)
    np.testing.assert_array_equal(unpermute(permuted(weight, HEADS), HEADS), weight)


def test_the_configuration_is_the_models(converted: Path) -> None:
    spec = validate_folder(converted)
    assert (spec.architecture, spec.hidden_size, spec.intermediate_size) == ("LlamaForCausalLM", 64, 96)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.norm_eps, spec.rope.theta, spec.max_position_embeddings) == (1e-5, 100000.0, 512)
    assert (spec.tie_word_embeddings, spec.eos_token_ids, spec.dtype) == (True, (2,), "float32")
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize("text", ["hello world", "a1b22  c", "日本語 🙂\n\t", "<|im_start|>user\nhello<|im_end|>", ""])
def test_the_tokenizer_gives_texts_back(converted: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert AutoTokenizer.from_pretrained(converted)(text)["input_ids"] == ids


def test_the_tokenizer_merges_splits_digits_and_knows_special_tokens(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("hello<|im_end|>12 w").tokens == ["hello", "<|im_end|>", "1", "2", "Ġw"]
    assert tokenizer.decode(tokenizer.encode("hello<|im_end|>").ids) == "hello"
    auto = AutoTokenizer.from_pretrained(converted)
    assert (auto.bos_token_id, auto.eos_token_id, auto.pad_token_id, auto.unk_token_id) == (1, 2, 2, 0)
    assert auto.chat_template == TEMPLATE


def test_the_same_gguf_gives_the_same_bytes(converted: Path, tmp_path: Path) -> None:
    convert_gguf(converted.parent / "tiny.gguf", tmp_path)
    assert (tmp_path / SUMS_FILE).read_text() == (converted / SUMS_FILE).read_text()
    verify_sums(converted)
    assert quick_problem(converted) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "gemma"}, "got GGUF architecture 'gemma', expected one of llama, qwen2, qwen3"),
        (
            {"pre_tokenizer": "tekken"},
            "got GGUF tokenizer 'gpt2' with pre-tokenizer 'tekken', expected 'gpt2'",
        ),
        ({"extra_tensor": "rope_freqs.weight"}, "got tensor 'rope_freqs.weight'"),
        ({"extra_tensor": "blk.0.attn_q.bias2"}, "got tensor 'blk.0.attn_q.bias2'"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(tmp_path: Path, change: dict[str, str], message: str) -> None:
    write_gguf(tmp_path / "other.gguf", **change)
    with pytest.raises(BatonError, match=message) as caught:
        convert_gguf(tmp_path / "other.gguf", tmp_path)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


@pytest.mark.parametrize(("architecture", "hf_class"), [("qwen2", "Qwen2"), ("qwen3", "Qwen3")])
def test_qwen_keeps_its_rows_its_biases_and_its_head_norms(tmp_path: Path, architecture: str, hf_class: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture, pre_tokenizer="qwen2")
    folder = tmp_path / "model"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder)
    got, expected = load_file(folder / "model.safetensors"), hf_weights(architecture)
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(got[name], weight, err_msg=name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == f"{hf_class}ForCausalLM"
    ids = torch.arange(3, 20)
    ours = load_model(validate_folder(folder), torch.float32, torch.device("cpu"), 64, impl=ModelImpl.NATIVE)
    with torch.inference_mode():
        pool = torch.zeros(4, KV_HEADS, LAYERS, 2, 8, HEAD_DIM)
        hidden = ours.forward(ids, torch.arange(17), pool, plan_batch([SequenceSlice(0, 17, [0, 1, 2])], pool))
        torch.testing.assert_close(ours.logits(hidden), model(ids[None]).logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "text", "pieces"),
    [
        ("llama-bpe", "It's 12345 e\u0301\n\n x", ["It", "'s", " ", "123", "45", " e", "\u0301\n\n", " x"]),
        ("qwen2", "It's 123 e\u0301\n\n x", ["It", "'s", " ", "1", "2", "3", " \u00e9", "\n\n", " x"]),
        ("smollm", "It's 123", ["It", "'s", " ", "1", "2", "3"]),
    ],
)
def test_each_kind_of_tokenizer_splits_in_its_way(tmp_path: Path, kind: str, text: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre_tokenizer=kind)
    tokenizer = build_tokenizer(GGUFReader(tmp_path / "tiny.gguf"))
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
    assert [normal[start:end] for start, end in spans] == pieces


def _metadata(folder: Path) -> GgufMetadata:
    write_gguf(folder / "tiny.gguf")
    return read_metadata(GGUFReader(folder / "tiny.gguf"))


def test_every_quantization_that_the_package_knows_is_read_and_others_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    metadata = _metadata(tmp_path)
    for kind in GGMLQuantizationType:
        block, size = GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 60, (3, 256 // block * size), dtype=np.uint8)
        tensor = ReaderTensor("output.weight", kind, np.array([256, 3], np.uint64), 768, data.size, 0, data, None)
        reader = SimpleNamespace(tensors=[tensor])
        out = tmp_path / f"{kind.name}.safetensors"
        if (kind.name.startswith("I") and kind.name[1:].isdigit()) or kind.name in ("F64", "Q1_0", "Q8_1", "Q8_K"):
            with pytest.raises(BatonError, match=f"got tensor 'output.weight' of type {kind.name}"):
                convert_weights(reader, metadata, out, no_progress)
        else:
            convert_weights(reader, metadata, out, no_progress)
            assert load_file(out)["lm_head.weight"].shape == (3, 256), kind.name


def test_what_is_no_gguf_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a GGUF file at all")
    with pytest.raises(BatonError, match=r"x\.gguf is not a whole GGUF file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)
