"""What takes the tokenizer's place for a model that has none: prompts are token ids, and so are answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baton.errors import BatonError, invalid
from gateway.chat_template import RenderOptions


class TokensOnlyCodec:
    """Refuses texts in words; stands where `TextCodec` does."""

    has_text = False
    chat_template: str | None = None

    def __init__(self, folder: Path) -> None:
        self._reason = f"the model has no tokenizer ({folder} has no tokenizer.json)"

    def encode(self, text: str) -> list[int]:
        """Raises:
        BatonError: INVALID_ARGUMENT, always.
        """
        raise invalid(f"prompt.text: got a text, but {self._reason}; send prompt.tokens")

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Raises:
        BatonError: INVALID_ARGUMENT, always.
        """
        raise self._no_chat()

    def render(self, messages: Sequence[Mapping[str, Any]], options: RenderOptions | None = None) -> str:
        """Raises:
        BatonError: INVALID_ARGUMENT, always.
        """
        raise self._no_chat()

    def _no_chat(self) -> BatonError:
        return invalid(f"prompt.chat: got a chat, but {self._reason}; send prompt.tokens")

    def encode_bare(self, text: str) -> list[int]:
        """Raises:
        BatonError: INVALID_ARGUMENT, always.
        """
        raise invalid(f"bad_words: got a text, but {self._reason}; use logit_bias")

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Nothing."""
        return ""

    def token_str(self, token_id: int) -> str:
        """Nothing."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        """Nothing."""
        return b""

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> "NoDetokenizer":
        """Any."""
        return NoDetokenizer()


class NoDetokenizer:
    """Every token reads as nothing."""

    def push(self, token_id: int) -> str:
        """Nothing."""
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""
