"""Block hashes of prompts, those of prefixes seen lately from memory: conversations come again with each turn."""

import array
from collections import OrderedDict
from collections.abc import Sequence

from baton.block_hash import extend_hashes, root_hash

_BLOCKS_A_PIECE = 32
_MAX_PIECES = 4096  # of 32 blocks of 16 tokens: 2 million tokens in about 20 MiB


class PromptHashes:
    """As `baton.block_hash.block_hashes`. Used on one thread."""

    def __init__(self, model_fingerprint: str, max_pieces: int = _MAX_PIECES) -> None:
        self._root = root_hash(model_fingerprint)
        self._max_pieces = max_pieces
        self._pieces: OrderedDict[tuple[bytes, int, bytes], list[bytes]] = OrderedDict()  # oldest use first

    def of(self, token_ids: Sequence[int], block_size: int) -> list[bytes]:
        """Hashes of the full blocks, first block first. Token ids must be below 2**32."""
        tokens = array.array("I", token_ids)
        parent, hashes, stride = self._root, list[bytes](), _BLOCKS_A_PIECE * block_size
        whole = len(tokens) - len(tokens) % stride
        for start in range(0, whole, stride):
            piece = tokens[start : start + stride]
            found = self._of_piece(parent, piece, block_size)
            hashes += found
            parent = found[-1]
        return hashes + extend_hashes(parent, tokens[whole:], block_size)

    def _of_piece(self, parent: bytes, piece: "array.array[int]", block_size: int) -> list[bytes]:
        key = (parent, block_size, piece.tobytes())
        found = self._pieces.get(key)
        if found is not None:
            self._pieces.move_to_end(key)
            return found
        found = self._pieces[key] = extend_hashes(parent, piece, block_size)
        if len(self._pieces) > self._max_pieces:
            self._pieces.popitem(last=False)
        return found
