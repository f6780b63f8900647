"""Bad words as token sequences: vLLM's rules for the space in front."""

from transformers import PreTrainedTokenizerFast

from gateway.bad_words import bad_word_sequences
from tests.fakes.text_model import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def tokens(*names: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.token_to_id(name) for name in names)


def test_a_word_is_banned_with_and_without_its_space() -> None:
    assert encode("fox") != encode(" fox")
    sequences = bad_word_sequences(["fox"], encode)
    assert sequences[0] == tuple(encode("fox"))
    expected = [tuple(encode("fox"))]
    if len(encode(" fox")) == len(encode("fox")):
        expected.append(tuple(encode(" fox")))
    assert list(sequences) == expected


def test_forms_of_one_length_that_begin_alike_are_one() -> None:
    forms = {"dog": [1, 2], " dog": [1, 3], "cat": [4], " cat": [5], "owl": [6], " owl": [9, 6]}
    assert bad_word_sequences(["dog"], forms.__getitem__) == ((1, 2),)
    assert bad_word_sequences(["cat"], forms.__getitem__) == ((4,), (5,))
    assert bad_word_sequences(["owl"], forms.__getitem__) == ((6,),)  # the space is a token of its own
    assert bad_word_sequences([" cat", "cat"], forms.__getitem__) == ((4,), (5,))


def test_each_form_reads_as_the_word() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER)
    for word in ("quick", "dog", "你好", "zzz"):
        for sequence in bad_word_sequences([word], encode):
            assert tokenizer.decode(sequence).strip() == word
