"""What the gateway asks of the worker directory; `baton.directory.reader` answers from Redis."""

from collections.abc import Sequence
from typing import Protocol

from baton.directory.base import WorkerRecord
from baton.types import WorkerRef


class WorkerDirectory(Protocol):
    """Which workers live, and which prefix blocks each of them owns."""

    async def workers(self) -> list[WorkerRecord]:
        """All registered workers of the model.

        Raises:
            BatonError: UNAVAILABLE when the directory cannot be read.
        """
        ...

    async def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        """How many leading blocks each worker owns; {} when the directory cannot be read."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...
