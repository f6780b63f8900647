"""Checks a write's block ids before they become addresses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BlockIds(NamedTuple):
    """Blocks to copy: src[i] of the sender's pool goes to dst[i] of the peer's; int32, of equal length, in range."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]


def check_write(
    src_blocks: Sequence[int], dst_blocks: Sequence[int], num_src: int, num_dst: int, notification: bytes | None
) -> BlockIds:
    """The arguments of `KVSender.post` as arrays, given the two pools' numbers of blocks.

    Raises:
        ValueError: the lists differ in length, are empty or name a block that is not there; an empty notification.
    """
    if len(src_blocks) != len(dst_blocks):
        raise ValueError(
            f"got {len(src_blocks)} source and {len(dst_blocks)} destination blocks, expected equally many; "
            "pass one destination for each source"
        )
    if len(src_blocks) == 0:
        raise ValueError("got a write of no blocks, expected at least one; send the notification with the last block")
    if notification == b"":
        raise ValueError("got an empty notification, expected some bytes; pass None to send none")
    return BlockIds(_in_range("source", src_blocks, num_src), _in_range("destination", dst_blocks, num_dst))


def _in_range(side: str, blocks: Sequence[int], num_blocks: int) -> NDArray[np.int32]:
    ids = np.asarray(blocks, dtype=np.int64)
    outside = ids[(ids < 0) | (ids >= num_blocks)]
    if outside.size:
        raise ValueError(
            f"got {side} block {outside[0]}, expected 0 to {num_blocks - 1}; pass ids of blocks of the {side} pool"
        )
    return ids.astype(np.int32)
