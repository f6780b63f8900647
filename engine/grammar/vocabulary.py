"""The bytes that each token id stands for, read from tokenizer.json next to the weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from baton.errors import BatonError, ErrorCode

_SPACE = "\u2581"  # how SentencePiece writes a space


def read_token_bytes(folder: Path, vocab_size: int) -> list[bytes]:
    """One entry for each token id below `vocab_size`.

    Empty for special tokens, which are no text, and for ids that stand for nothing (padding of the logits).

    Raises:
        BatonError: NOT_FOUND without a tokenizer.json, FAILED_PRECONDITION when tokens there are spelled in neither of
            the two known ways: byte-level (GPT-2) or SentencePiece with byte fallback (Llama 2).
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"structured: got a grammar, but {folder} has no tokenizer.json, expected one; drop structured, or give "
            "--model a folder with a fast tokenizer",
        )
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    spelling = _spelling(file, tokenizer)
    table = [b""] * vocab_size
    for token, token_id in _vocabulary(tokenizer["model"]["vocab"]):
        if token_id < vocab_size:
            table[token_id] = spelling(token)
    for added in tokenizer.get("added_tokens") or ():
        if added["id"] < vocab_size:
            table[added["id"]] = b"" if added["special"] else added["content"].encode()
    return table


def _vocabulary(vocab: Any) -> Iterator[tuple[str, int]]:
    """A mapping for BPE; a list of [token, score] for Unigram."""
    if isinstance(vocab, dict):
        yield from vocab.items()
    else:
        yield from ((token, token_id) for token_id, (token, _) in enumerate(vocab))


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


def _spelling(file: Path, tokenizer: dict[str, Any]) -> Any:
    kinds = set(_kinds(tokenizer.get("decoder")))
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece
    raise BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"structured: got a grammar, but {file} has a decoder of {sorted(kinds) or 'no kind'}, expected ByteLevel, "
        "ByteFallback or Metaspace; drop structured, this model cannot follow grammars here",
    )


def _kinds(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder:
        yield decoder["type"]
        for part in decoder.get("decoders", ()):
            yield from _kinds(part)
