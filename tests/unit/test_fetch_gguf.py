"""Conversion of a GGUF: exact weights in Hugging Face's order, its configuration, its tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest
from fetch_samples import HEAD_DIM, HEADS, TEMPLATE, hf_weights, permuted, write_gguf
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from baton.errors import BatonError, ErrorCode
from baton.fetch.checksums import SUMS_FILE, quick_problem, verify_sums
from baton.fetch.convert import convert_gguf
from baton.fetch.gguf_weights import unpermute
from baton.fetch.local import validate_folder


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
        ({"architecture": "gemma"}, "got GGUF architecture 'gemma', expected 'llama'"),
        ({"pre_tokenizer": "qwen2"}, "got GGUF tokenizer"),
        ({"extra_tensor": "blk.0.attn_q.bias2"}, "got tensor 'blk.0.attn_q.bias2'"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(tmp_path: Path, change: dict[str, str], message: str) -> None:
    write_gguf(tmp_path / "other.gguf", **change)
    with pytest.raises(BatonError, match=message) as caught:
        convert_gguf(tmp_path / "other.gguf", tmp_path)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION
