"""Token ids to text, one token at a time, without ever emitting half a character."""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"  # what half a character decodes to
_CONTEXT_TOKENS = 6
# A byte-level character has at most 4 tokens; garbage can go on and on without completing one.
_MAX_PENDING_TOKENS = 16
_KEPT_TOKENS = 4


class Detokenizer:
    """Incremental decoding by prefix and read offsets, as in text-generation-inference.

    `_window[:_read]` is context that was emitted before, as `_context`: how a token reads can depend on its left
    neighbour (a leading space, bytes of one character). The window is decoded as a whole, and what goes beyond
    `_context` is new.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        hidden_ids: frozenset[int],
        prompt_token_ids: Sequence[int] = (),
        joined: Mapping[int, str] | None = None,
    ) -> None:
        """The prompt gives the first token its left neighbours, as far as they are text.

        Args:
            hidden_ids: tokens that have no place in the text, as special ones mostly
            joined: texts of tokens that get no space between them, whatever the tokenizer's decoder does
        """
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._joined = joined or {}
        self._after_joined = False
        self._window: list[int] = []
        for token_id in reversed(prompt_token_ids[-_CONTEXT_TOKENS:]):
            if self._is_silent(token_id):
                break
            self._window.insert(0, token_id)
        self._read = len(self._window)
        self._context = self._decode(self._window)

    def push(self, token_id: int) -> str:
        """What this token adds to the text; "" while a character is incomplete and for hidden tokens."""
        if self._is_silent(token_id):
            return ""
        after_joined, self._after_joined = self._after_joined, token_id in self._joined
        if after_joined and self._after_joined:
            new = self.flush() + self._joined[token_id]
            self._begin([token_id])
            return new
        self._window.append(token_id)
        new = self._new_text()
        if new.endswith(_REPLACEMENT):
            return self._push_incomplete(new)
        if new:
            self._begin(self._window[self._read :])
        return new

    def flush(self) -> str:
        """What is held back, at the end of the output: an incomplete character shows as U+FFFD."""
        new = self._new_text()
        self._begin(self._window[self._read :])
        return new

    def _push_incomplete(self, new: str) -> str:
        if len(self._window) - self._read < _MAX_PENDING_TOKENS:
            return ""
        # Only the last character is unsettled, and it lies within the last 3 tokens.
        self._window = self._window[-_KEPT_TOKENS:]
        self._read = 0
        self._context = self._decode(self._window)[:-1]
        return new[:-1]

    def _begin(self, context: list[int]) -> None:
        self._window = context
        self._read = len(context)
        self._context = self._decode(context)

    def _new_text(self) -> str:
        text = self._decode(self._window)
        # The context's own incomplete character, begun by the prompt or by garbage, may have become another one.
        if text.startswith(self._context.rstrip(_REPLACEMENT)):
            return text[len(self._context) :]
        # With byte fallback, bytes that make no character take all bytes in front of them along, whole characters
        # included. Those are out, so what has come since is read by itself.
        return self._decode(self._window[self._read :])

    def _is_silent(self, token_id: int) -> bool:
        # Padded vocabularies have ids that stand for nothing.
        return token_id in self._hidden_ids or self._tokenizer.id_to_token(token_id) is None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
