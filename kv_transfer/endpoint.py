"""Reads what a peer says about its pool, and refuses what this sender cannot write to."""

from typing import Annotated, TypeVar

import msgspec

from baton.errors import BatonError, ErrorCode, invalid
from baton.types import KvEndpoint


class PoolMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every connector's `KvEndpoint.metadata` holds, as msgpack; connectors add fields."""

    # Bounded, since a sender prepares a descriptor for each block.
    num_blocks: Annotated[int, msgspec.Meta(gt=0, le=2**24)]
    block_bytes: Annotated[int, msgspec.Meta(gt=0)]


Metadata = TypeVar("Metadata", bound=PoolMetadata)


def read_endpoint(
    peer_id: str, endpoint: KvEndpoint, connector: str, metadata_type: type[Metadata], block_bytes: int
) -> Metadata:
    """The peer's metadata, when blocks of `block_bytes` can be written there by `connector`.

    Raises:
        BatonError: FAILED_PRECONDITION when connector or block size differ, INVALID_ARGUMENT for garbled metadata.
    """
    if endpoint.connector != connector:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"kv connector: got {endpoint.connector!r} on peer {peer_id}, expected {connector!r} as here; "
            "start both with the same --connector",
        )
    try:
        metadata = msgspec.msgpack.decode(endpoint.metadata, type=metadata_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(
            f"kv endpoint: got {len(endpoint.metadata)} bytes of metadata from peer {peer_id} that {connector} cannot "
            f"read ({error}), expected what its receiver's endpoint() returns; run the same Baton release on both"
        ) from error
    if metadata.block_bytes != block_bytes:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"kv block bytes: got {metadata.block_bytes} on peer {peer_id}, expected {block_bytes} as here; "
            "serve the same model on both, with the same --block-size and --dtype",
        )
    return metadata


def sender_closed() -> BatonError:
    """For `connect` on a sender that was closed."""
    return BatonError(ErrorCode.FAILED_PRECONDITION, "kv sender: got connect after close; make a new sender")


def not_connected(peer_id: str) -> ValueError:
    """For `post` to a peer that is not known: the caller's mistake, not the peer's."""
    return ValueError(f"got peer {peer_id!r}, expected one that is connected; call connect first")


def writes_in_flight(peer_id: str, count: int) -> ValueError:
    """For `disconnect` while the peer's memory may still be written to."""
    return ValueError(
        f"got disconnect of {peer_id!r} with {count} writes in flight, expected none; poll until they end"
    )
