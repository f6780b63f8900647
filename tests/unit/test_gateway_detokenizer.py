"""Incremental detokenizing: the pieces add up to the whole text, and none holds half a character."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gateway.detokenizer import Detokenizer
from tests.fakes.text_model import SPECIAL, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
SPECIAL_IDS = frozenset(TOKENIZER.token_to_id(token) for token in SPECIAL)


def pieces_of(token_ids: list[int], prompt: list[int] | None = None, tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    special = SPECIAL_IDS if tokenizer is TOKENIZER else frozenset()
    detokenizer = Detokenizer(tokenizer, special, prompt or [])
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


def sentencepiece_like() -> Tokenizer:
    """Metaspace with byte fallback, as in Llama 2: the decoder drops the first space."""
    words = ["<unk>", "▁Hello", "▁world", "!", "▁"]
    vocab = {word: index for index, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["<tool>", "naïve"])
    return tokenizer


FALLBACK = sentencepiece_like()


@pytest.mark.parametrize(
    "text", ["Hello world!", "你好世界", "🎉🚀 déjà vu", "a🏳️‍🌈b", "  two  spaces ", "\n\n", "한국어 ไทย"]
)
def test_pieces_are_whole_characters(text: str) -> None:
    pieces = pieces_of(TOKENIZER.encode(text).ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""  # nothing was held back at the end


@given(st.text(max_size=60))
def test_any_text_survives(text: str) -> None:
    assert "".join(pieces_of(TOKENIZER.encode(text).ids)) == TOKENIZER.decode(TOKENIZER.encode(text).ids)


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() + 50), max_size=80))
def test_any_tokens_read_as_the_whole_decode(token_ids: list[int]) -> None:
    assert "".join(pieces_of(token_ids)) == TOKENIZER.decode(token_ids, skip_special_tokens=True)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(TOKENIZER.encode("🎉你é").ids[:6]), min_size=30, max_size=120))
def test_long_garbage_reads_as_the_whole_decode(token_ids: list[int]) -> None:
    assert "".join(pieces_of(token_ids)) == TOKENIZER.decode(token_ids)


def test_garbage_does_not_pile_up() -> None:
    continuation = (
        TOKENIZER.encode("é").ids[-1] if len(TOKENIZER.encode("é").ids) > 1 else TOKENIZER.encode("鿿").ids[-1]
    )
    detokenizer = Detokenizer(TOKENIZER, SPECIAL_IDS)
    emitted = sum(len(detokenizer.push(continuation)) for _ in range(2000))
    assert emitted > 1900


def test_special_tokens_are_silent_and_plain_added_ones_are_not() -> None:
    ids = [*TOKENIZER.encode("a").ids, TOKENIZER.token_to_id("<|im_end|>"), TOKENIZER.token_to_id("<tool>")]
    assert pieces_of(ids) == ["a", "", "<tool>", ""]


def test_incomplete_character_shows_at_the_end() -> None:
    ids = TOKENIZER.encode("ok 鿿").ids
    assert "".join(pieces_of(ids[:-1])) == "ok \ufffd"


def test_prompt_gives_the_first_token_its_space() -> None:
    tokenizer = sentencepiece_like()
    hello, world = tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("▁world")
    assert pieces_of([world, world], [hello], tokenizer) == [" world", " world", ""]
    assert pieces_of([hello, world], [], tokenizer) == ["Hello", " world", ""]


def test_byte_fallback_waits_for_the_character() -> None:
    tokenizer = sentencepiece_like()
    you = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "你好".encode()]
    assert pieces_of([tokenizer.token_to_id("▁Hello"), *you], [], tokenizer) == [
        "Hello",
        "",
        "",
        "你",
        "",
        "",
        "好",
        "",
    ]


def test_a_character_begun_by_the_prompt_is_not_repeated() -> None:
    ids = TOKENIZER.encode("鿿!").ids
    assert "".join(pieces_of(ids[1:], ids[:1])) == "!"


@pytest.fixture(scope="module")
def real_tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_smollm2s_pieces_read_as_the_whole_decode(real_tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Any text, and any tokens, special ones and half characters among them."""
    tokenizer, added = real_tokenizer, real_tokenizer.get_added_tokens_decoder()
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    words = st.text(max_size=40).map(lambda text: tokenizer.encode(text).ids)
    token_ids = data.draw(words | st.lists(st.integers(0, tokenizer.get_vocab_size() + 20), max_size=40))
    for hidden in (special, frozenset[int]()):
        detokenizer = Detokenizer(tokenizer, hidden)
        pieces = [*map(detokenizer.push, token_ids), detokenizer.flush()]
        whole = tokenizer.decode(token_ids, skip_special_tokens=bool(hidden))
        assert "".join(pieces) == whole
        assert "\ufffd" in whole or not any("\ufffd" in piece for piece in pieces)


@given(st.text(max_size=60))
def test_byte_fallback_gives_any_text_in_whole_characters(text: str) -> None:
    ids = FALLBACK.encode(text).ids
    pieces = pieces_of(ids, [], FALLBACK)
    assert "".join(pieces) == FALLBACK.decode(ids, skip_special_tokens=False)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() + 5), max_size=60))
def test_byte_fallback_loses_nothing_beside_garbage(ids: list[int]) -> None:
    """Bytes that make no character spoil the whole run of bytes in the whole decode, but not what is out already."""
    text, whole = "".join(pieces_of(ids, [], FALLBACK)), FALLBACK.decode(ids, skip_special_tokens=False)
    rest = iter(text)
    assert all(character in rest for character in whole.replace("\ufffd", ""))
    assert ("\ufffd" in text) == ("\ufffd" in whole)
    if "\ufffd" not in whole:
        assert text == whole


def test_a_stray_byte_behind_a_character_is_one_replacement() -> None:
    you = [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in "你".encode()]
    stray, mark = FALLBACK.token_to_id("<0xE5>"), FALLBACK.token_to_id("!")
    assert pieces_of([*you, stray, mark], [], FALLBACK) == ["", "", "你", "", "\ufffd!", ""]
    assert pieces_of([*you, stray], [], FALLBACK) == ["", "", "你", "", "\ufffd"]


def test_added_tokens_read_as_themselves() -> None:
    special = frozenset(FALLBACK.token_to_id(token) for token in ("<s>", "</s>"))
    ids = [FALLBACK.token_to_id(token) for token in ("<s>", "▁Hello", "<tool>", "naïve", "▁world", "</s>")]
    hidden, shown = (Detokenizer(FALLBACK, tokens) for tokens in (special, frozenset[int]()))
    assert [hidden.push(token_id) for token_id in ids] == ["", "Hello", "<tool>", "naïve", " world", ""]
    assert "".join(map(shown.push, ids)) == "<s> Hello<tool>naïve world</s>" == FALLBACK.decode(ids, False)


def test_added_tokens_are_joined_on_demand() -> None:
    """A tokenizer without a decoder puts a space between any two tokens."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.add_special_tokens(["<x>", "<y>"])
    ids = [0, 2, 3, 3, 1, 2]
    names = {2: "<x>", 3: "<y>"}
    spaced, joined = (Detokenizer(tokenizer, frozenset(), (), texts) for texts in ({}, names))
    assert "".join(map(spaced.push, ids)) == "a <x> <y> <y> b <x>" == tokenizer.decode(ids, False)
    assert "".join(map(joined.push, ids)) == "a <x><y><y> b <x>"
