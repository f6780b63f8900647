"""Token ids to text, one token at a time, without ever emitting half a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"  # what half a character decodes to
_CONTEXT_TOKENS = 6
# A byte-level character has at most 4 tokens; garbage can go on and on without completing one.
_MAX_PENDING_TOKENS = 16
_KEPT_TOKENS = 4


class Detokenizer:
    """Incremental decoding by prefix and read offsets, as in text-generation-inference.

    `_window[:_read]` is context that was emitted before: how a token reads can depend on its left neighbour (a leading
    space, bytes of one character). The window is decoded as a whole, and what goes beyond `_emitted_chars` is new.
    """

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int], prompt_token_ids: Sequence[int] = ()) -> None:
        """The prompt gives the first token its left neighbours, as far as they are text."""
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._window: list[int] = []
        for token_id in reversed(prompt_token_ids[-_CONTEXT_TOKENS:]):
            if self._is_silent(token_id):
                break
            self._window.insert(0, token_id)
        self._read = len(self._window)
        self._emitted_chars = len(self._decode())

    def push(self, token_id: int) -> str:
        """What this token adds to the text; "" while a character is incomplete and for special tokens."""
        if self._is_silent(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode()
        if text.endswith(_REPLACEMENT):
            return self._push_incomplete(text)
        new = text[self._emitted_chars :]
        if new:
            self._window = self._window[self._read :]
            self._read = len(self._window)
            self._emitted_chars = len(self._decode())
        return new

    def flush(self) -> str:
        """What is held back, at the end of the output: an incomplete character shows as U+FFFD."""
        new = self._decode()[self._emitted_chars :]
        self._emitted_chars += len(new)
        return new

    def _push_incomplete(self, text: str) -> str:
        if len(self._window) - self._read < _MAX_PENDING_TOKENS:
            return ""
        # Only the last character is unsettled, and it lies within the last 3 tokens.
        new = text[self._emitted_chars : -1]
        self._window = self._window[-_KEPT_TOKENS:]
        self._read = 0
        self._emitted_chars = len(self._decode()) - 1
        return new

    def _is_silent(self, token_id: int) -> bool:
        # Padded vocabularies have ids that stand for nothing.
        return token_id in self._special_ids or self._tokenizer.id_to_token(token_id) is None

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)
