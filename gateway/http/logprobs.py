"""Log-probabilities in OpenAI's two formats, and prompt log-probabilities in vLLM's."""

from collections.abc import Sequence

import msgspec

from baton.rpc import sampling_pb2
from gateway.no_text import TokensOnlyCodec
from gateway.text import TextCodec

_LEAST = -9999.0  # JSON has no -inf


class CompletionLogprobs(msgspec.Struct):
    """Of /v1/completions: one entry a token in each list."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class TopLogprob(msgspec.Struct):
    """One token that could have been drawn."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One token that was drawn."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of /v1/chat/completions."""

    content: list[TokenLogprob]


class PromptLogprob(msgspec.Struct):
    """vLLM's; the rank is known of the best tokens only."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TokenNames:
    """How tokens are written in answers."""

    def __init__(self, codec: TextCodec | TokensOnlyCodec, as_ids: bool) -> None:
        """`as_ids`: as "token_id:17", which no two tokens share."""
        self._codec = codec
        self._as_ids = as_ids or not codec.has_text

    def name(self, token_id: int) -> str:
        """Its text; for part of a character "bytes:" and each byte, as OpenAI writes it."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self._codec.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def data(self, token_id: int) -> list[int]:
        """Its bytes."""
        return list(self._codec.token_bytes(token_id))


def chat_logprobs(entries: Sequence[sampling_pb2.TokenLogprobs], names: TokenNames) -> ChatLogprobs:
    """One entry a token."""
    return ChatLogprobs(
        [
            TokenLogprob(
                names.name(entry.sampled.token_id),
                _finite(entry.sampled.logprob),
                names.data(entry.sampled.token_id),
                [
                    TopLogprob(names.name(top.token_id), _finite(top.logprob), names.data(top.token_id))
                    for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


def prompt_logprobs(entries: Sequence[sampling_pb2.TokenLogprobs], names: TokenNames) -> PromptLogprobs:
    """One entry a prompt token; null for the first, which nothing precedes."""
    return [_prompt_entry(entry, names) if entry.HasField("sampled") else None for entry in entries]


def _prompt_entry(entry: sampling_pb2.TokenLogprobs, names: TokenNames) -> dict[str, PromptLogprob]:
    ranks = {top.token_id: rank for rank, top in enumerate(entry.top, start=1)}
    return {
        str(token.token_id): PromptLogprob(
            _finite(token.logprob), ranks.get(token.token_id), names.name(token.token_id)
        )
        for token in (entry.sampled, *entry.top)
    }


class CompletionLogprobsWriter:
    """Makes the lists of one choice, chunk by chunk: text offsets go on."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0

    def write(self, token_ids: Sequence[int], entries: Sequence[sampling_pb2.TokenLogprobs]) -> CompletionLogprobs:
        """One token an entry; an entry without `sampled` is the first token of a prompt."""
        written = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(token_ids, entries, strict=True):
            name = self._names.name(token_id)
            written.tokens.append(name)
            written.text_offset.append(self._offset)
            self._offset += len(name)
            if not entry.HasField("sampled"):
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
                continue
            written.token_logprobs.append(_finite(entry.sampled.logprob))
            # The token itself is among them, as in vLLM; of two tokens with one name the better one stays.
            top = {self._names.name(other.token_id): _finite(other.logprob) for other in reversed(entry.top)}
            top.setdefault(name, _finite(entry.sampled.logprob))
            written.top_logprobs.append(top)
        return written


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
