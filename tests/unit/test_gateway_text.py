"""Tokenizer and chat template of a model folder."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.errors import BatonError, ErrorCode
from gateway.chat_template import ChatTemplate, load_chat_template
from gateway.no_text import TokensOnlyCodec
from gateway.text import TextCodec, load_codec
from tests.fakes.text_model import write_text_model

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b> & é"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


def test_chat_is_rendered_with_the_generation_prompt(folder: Path) -> None:
    template = load_chat_template(folder)
    assert template is not None
    assert template.render(MESSAGES) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & é<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chat_tokens_keep_special_tokens(folder: Path) -> None:
    codec = TextCodec(folder)
    assert codec.encode_chat(MESSAGES).count(codec.encode("<|im_end|>")[0]) == 2


def test_template_file_goes_before_the_config(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages | tojson }}{{ bos_token }}")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": {"content": "<s>"}}))
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render(MESSAGES[1:]) == '[{"role": "user", "content": "Hi <b> & é"}]<s>'


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "plain"


def test_model_without_a_template(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(BatonError, match="has no chat template"):
        TextCodec(tmp_path).encode_chat(MESSAGES)


def test_template_refusal_carries_its_own_words(folder: Path) -> None:
    with pytest.raises(BatonError, match="the assistant cannot begin") as caught:
        TextCodec(folder).encode_chat([{"role": "assistant", "content": "Hi"}])
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ 1 / 0 }}", "{{ messages[5].role.x.y }}"]
)
def test_template_cannot_do_harm(source: str) -> None:
    with pytest.raises(BatonError) as caught:
        ChatTemplate(source, {}).render(MESSAGES)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_broken_template_fails_at_the_start() -> None:
    with pytest.raises(BatonError, match="does not compile") as caught:
        ChatTemplate("{% if %}", {})
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


@pytest.mark.parametrize("call", [lambda codec: codec.encode("Hi"), lambda codec: codec.encode_chat(MESSAGES)])
def test_without_a_tokenizer_texts_are_refused_and_tokens_are_not(
    tmp_path: Path, call: Callable[[TextCodec | TokensOnlyCodec], object]
) -> None:
    codec = load_codec(tmp_path)
    with pytest.raises(BatonError, match=r"has no tokenizer \(.* no tokenizer.json\); send prompt.tokens"):
        call(codec)
    detokenizer = codec.detokenizer([1, 2])
    assert detokenizer.push(3) + detokenizer.flush() == ""


def test_with_a_tokenizer_texts_are_read(folder: Path) -> None:
    assert isinstance(load_codec(folder), TextCodec)


def test_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BatonError, match="cannot read the tokenizer"):
        TextCodec(tmp_path)


def test_truncation_of_the_tokenizer_file_is_off(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    file = tmp_path / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(settings))
    assert len(TextCodec(tmp_path).encode("the quick brown fox " * 20)) > 4


async def test_a_long_text_does_not_hold_up_the_loop(folder: Path) -> None:
    codec = TextCodec(folder)
    encoding = asyncio.create_task(asyncio.to_thread(codec.encode, "the quick brown fox " * 50_000))
    num_turns = 0
    while not encoding.done():
        await asyncio.sleep(0.005)
        num_turns += 1
    assert len(await encoding) > 100_000
    # Held up, it gets one turn before and one after. Counted, not timed: other processes want the cores, too.
    assert num_turns > 5


def test_small_model_reads_as_transformers_does(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2)
    codec = TextCodec(smollm2)
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = codec.encode_chat(MESSAGES)
    assert ids == reference(expected, add_special_tokens=False)["input_ids"]
    detokenizer = codec.detokenizer([])
    assert "".join(map(detokenizer.push, ids)) == reference.decode(ids, skip_special_tokens=True)
