"""A model's tokenizer: text and chats to token ids, and detokenizers for answers."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from baton.errors import BatonError, ErrorCode, invalid
from baton.token_spelling import spelling
from gateway.chat_template import RenderOptions, load_chat_template
from gateway.detokenizer import Detokenizer
from gateway.no_text import TokensOnlyCodec

logger = logging.getLogger(__name__)


def load_codec(folder: Path) -> "TextCodec | TokensOnlyCodec":
    """For a folder without tokenizer.json one that serves token ids only; the log says so.

    Raises:
        BatonError: as `TextCodec`.
    """
    if (folder / "tokenizer.json").is_file():
        return TextCodec(folder)
    logger.warning("no tokenizer.json in %s: prompts must be token ids, and answers have no text", folder)
    return TokensOnlyCodec(folder)


class TextCodec:
    """What turns text into a model's tokens and back. Encoding is safe on any thread and lets the others run."""

    has_text = True

    def __init__(self, folder: Path) -> None:
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja.

        Raises:
            BatonError: NOT_FOUND without a tokenizer.json, FAILED_PRECONDITION when it or the chat template is invalid.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise BatonError(
                ErrorCode.NOT_FOUND, f"no tokenizer.json in {folder}; give --model a folder with a fast tokenizer"
            )
        try:
            self._tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
            self._template = load_chat_template(folder)
        except BatonError:
            raise
        except Exception as error:  # tokenizers raises nothing more specific
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"cannot read the tokenizer in {folder}: {error}; fetch the model again"
            ) from error
        self._tokenizer.no_truncation()  # a prompt that is too long is refused, never cut
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content for token_id, token in added.items()}
        decoder = self._tokenizer.decoder
        self._spelling = spelling(json.loads(decoder.__getstate__()) if decoder is not None else None)

    @property
    def chat_template(self) -> str | None:
        """Its source; None for a model without one."""
        return self._template.source if self._template else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with what the model puts around one (such as a beginning-of-sequence token)."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Token ids of a chat, up to where the assistant's answer begins.

        Args:
            add_special_tokens: those that go around a plain prompt; a template mostly writes them itself

        Raises:
            BatonError: INVALID_ARGUMENT when the model has no chat template or its template refuses the messages.
        """
        return self._encode(self.render(messages, options), add_special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], options: RenderOptions | None = None) -> str:
        """A chat as the text that the model reads.

        Raises:
            BatonError: as `encode_chat`.
        """
        if self._template is None:
            raise invalid(
                "prompt.chat: got a chat, but the model has no chat template; send prompt.text or prompt.tokens"
            )
        return self._template.render(messages, options)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Unlike `encode`, the batch call frees the interpreter lock: 1 MB stalled the loop for 0.5 s, now for 0.02 s.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_bare(self, text: str) -> list[int]:
        """Token ids of a piece of text, with nothing put around it."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of a prompt."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_str(self, token_id: int) -> str:
        """As the tokenizer spells it; "" for an id that stands for nothing."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, which may be part of a character; a special token adds its name."""
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._spelling is not None and (token := self._tokenizer.id_to_token(token_id)) is not None:
            return self._spelling(token)
        return self.decode([token_id], skip_special_tokens=False).encode()

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """One for each answer."""
        hidden = self._special_ids if skip_special_tokens else frozenset()
        joined = {} if skip_special_tokens or spaces_between_special_tokens else self._added
        return Detokenizer(self._tokenizer, hidden, prompt_token_ids, joined)
