"""Chained hashes of a prompt's full blocks: equal hash, equal prefix up to and including that block."""

import array
import hashlib
from collections.abc import Sequence

HASH_BYTES = 16


def root_hash(model_fingerprint: str) -> bytes:
    """The parent of every first block: KV of different models must never be taken for one another."""
    return hashlib.sha256(b"baton-block-v1\0" + model_fingerprint.encode()).digest()[:HASH_BYTES]


def extend_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the consecutive full blocks of `token_ids`, chained to `parent`; a partial last block has none.

    SHA-256 cut to 128 bits, because a collision would serve another prompt's KV. Token ids must be below 2**32.
    """
    data = array.array("I", token_ids).tobytes()
    stride = block_size * 4
    sha256 = hashlib.sha256
    hashes = []
    for start in range(0, len(data) - stride + 1, stride):
        parent = sha256(parent + data[start : start + stride]).digest()[:HASH_BYTES]
        hashes.append(parent)
    return hashes


def block_hashes(model_fingerprint: str, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of a prompt, first block first."""
    return extend_hashes(root_hash(model_fingerprint), token_ids, block_size)
