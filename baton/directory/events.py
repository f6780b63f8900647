"""What workers tell of their prefix caches in the stream: numbered changes of one incarnation, and its bytes."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from baton.block_hash import HASH_BYTES
from baton.types import WorkerRef

FIELD = b"e"  # of a stream entry
MAX_EVENTS = 8192  # kept in the stream, about; who is further behind reads the workers' sets
_HASHES_AN_EVENT = 512  # so a full stream is at most 64 MiB


class BlockEvent(msgspec.Struct, frozen=True, array_like=True):
    """One change; `removed` comes before `stored`. Without either: the set of hashes was written anew."""

    worker: str
    incarnation: str
    sequence: int  # the one before has one less, or the reader has missed something
    removed: bytes = b""  # hashes, one behind the other
    stored: bytes = b""

    @property
    def ref(self) -> WorkerRef:
        """Whose caches these are."""
        return WorkerRef(self.worker, self.incarnation)

    @property
    def rewritten(self) -> bool:
        """Whether it says no more than that all is to be read again."""
        return not self.removed and not self.stored


_decoder = msgspec.msgpack.Decoder(BlockEvent)
encode = msgspec.msgpack.encode


def decode(data: bytes) -> BlockEvent | None:
    """None for what no worker of this version wrote."""
    try:
        event = _decoder.decode(data)
    except msgspec.DecodeError:
        return None
    return None if len(event.removed) % HASH_BYTES or len(event.stored) % HASH_BYTES else event


def hashes_of(joined: bytes) -> list[bytes]:
    """The hashes of an event's field."""
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]


def changes_of(removed: Sequence[bytes], stored: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Fields of as many events as that needs, all removals first."""
    for part in _parts(removed):
        yield part, b""
    for part in _parts(stored):
        yield b"", part


def net_change(changes: Iterable[tuple[Iterable[bytes], Iterable[bytes]]]) -> tuple[list[bytes], list[bytes]]:
    """What is left of (removed, stored) one after the other: what is not there in the end, and what is."""
    last: dict[bytes, bool] = {}
    for removed, stored in changes:
        last.update(dict.fromkeys(removed, False))
        last.update(dict.fromkeys(stored, True))
    return [key for key, there in last.items() if not there], [key for key, there in last.items() if there]


def _parts(hashes: Sequence[bytes]) -> Iterator[bytes]:
    for i in range(0, len(hashes), _HASHES_AN_EVENT):
        yield b"".join(hashes[i : i + _HASHES_AN_EVENT])
