"""Words that an answer must not contain, as the token sequences that workers ban."""

from collections.abc import Callable, Sequence

from baton.errors import invalid
from baton.sampling_limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS

MAX_BAD_WORD_CHARS = 256

Encode = Callable[[str], Sequence[int]]


def check_bad_words(words: Sequence[str]) -> None:
    """What can be said without a tokenizer.

    Raises:
        BatonError: INVALID_ARGUMENT for too many words, or one that is too long or only white space.
    """
    if len(words) > MAX_BAD_WORDS:
        raise invalid(f"bad_words: got {len(words)} words, expected at most {MAX_BAD_WORDS}; send fewer")
    for index, word in enumerate(words):
        if len(word) > MAX_BAD_WORD_CHARS:
            raise invalid(
                f"bad_words[{index}]: got {len(word)} characters, expected at most {MAX_BAD_WORD_CHARS}; shorten it"
            )
        if not word.strip():
            raise invalid(
                f"bad_words[{index}]: got {word!r}, expected a word with more than white space; use logit_bias to keep "
                "single tokens out"
            )


def bad_word_sequences(words: Sequence[str], encode: Encode) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, and those with a space in front where they are as many and begin with another one.

    Those are vLLM's rules: the second form is the word within a text. Where the space is a token of its own, what
    follows it is the first form.

    Args:
        words: have passed `check_bad_words`
        encode: a text's token ids, without any that the model puts around a prompt

    Raises:
        BatonError: INVALID_ARGUMENT for a word of too many tokens.
    """
    sequences: dict[tuple[int, ...], int] = {}  # each once, with the index of its word
    for index, word in enumerate(words):
        bare = word.lstrip()
        alone, within = tuple(encode(bare)), tuple(encode(f" {bare}"))
        if alone:
            sequences[alone] = index
        if within and (not alone or (len(within) == len(alone) and within[0] != alone[0])):
            sequences[within] = index
    for tokens, index in sequences.items():
        if len(tokens) > MAX_BAD_WORD_TOKENS:
            raise invalid(
                f"bad_words[{index}]: got a word of {len(tokens)} tokens, expected at most {MAX_BAD_WORD_TOKENS}; "
                "shorten it"
            )
    return tuple(sequences)
