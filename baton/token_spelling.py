"""How a tokenizer's vocabulary spells bytes: byte-level (GPT-2) or SentencePiece with byte fallback (Llama 2)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Spelling = Callable[[str], bytes]

_SPACE = "\u2581"  # how SentencePiece writes a space


def spelling(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """From a token of the vocabulary to its bytes; None when tokens are spelled in neither of the two ways.

    `decoder` is that part of tokenizer.json.
    """
    kinds = set(decoder_kinds(decoder))
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece
    return None


def decoder_kinds(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """The names of a decoder and of all its parts."""
    if decoder:
        yield decoder["type"]
        for part in decoder.get("decoders", ()):
            yield from decoder_kinds(part)


class _ByteLevel:
    """Each character stands for a byte: printable ones of Latin-1 for themselves, the others for 256 and up (GPT-2)."""

    def __init__(self) -> None:
        kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        moved = [byte for byte in range(256) if byte not in kept]
        self._byte_of = {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(moved)}

    def __call__(self, token: str) -> bytes:
        return bytes(self._byte_of[char] for char in token) if self._byte_of.keys() >= set(token) else token.encode()


def _sentencepiece(token: str) -> bytes:
    """ "<0x0A>" is a byte; all else is text."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()
