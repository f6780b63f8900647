"""The bytes that each token id stands for, read from tokenizer.json next to the weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from baton.errors import BatonError, ErrorCode
from baton.token_spelling import Spelling, decoder_kinds, spelling


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
    bytes_of = _spelling(file, tokenizer)
    table = [b""] * vocab_size
    for token, token_id in _vocabulary(tokenizer["model"]["vocab"]):
        if token_id < vocab_size:
            table[token_id] = bytes_of(token)
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


def _spelling(file: Path, tokenizer: dict[str, Any]) -> Spelling:
    found = spelling(tokenizer.get("decoder"))
    if found is None:
        kinds = sorted(set(decoder_kinds(tokenizer.get("decoder"))))
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"structured: got a grammar, but {file} has a decoder of {kinds or 'no kind'}, expected ByteLevel, "
            "ByteFallback or Metaspace; drop structured, this model cannot follow grammars here",
        )
    return found
