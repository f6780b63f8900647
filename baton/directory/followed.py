"""The directory as a gateway uses it: records are read from Redis, owned blocks are followed in memory."""

from collections.abc import Sequence

from baton.directory.base import WorkerRecord
from baton.directory.follower import BlockFollower
from baton.directory.metrics import IndexMetrics, RedisMetrics
from baton.directory.reader import DirectoryReader
from baton.telemetry.exposition import Metrics
from baton.types import WorkerRef


class FollowedDirectory:
    """The records are read on request, and say whose blocks count."""

    def __init__(self, redis_url: str, model_fingerprint: str, metrics: Metrics | None = None) -> None:
        """Connects at the first call.

        Raises:
            BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
        """
        metrics = metrics or Metrics()
        self._reader = DirectoryReader(redis_url, model_fingerprint, RedisMetrics(metrics))
        self.follower = BlockFollower(redis_url, model_fingerprint, IndexMetrics(metrics))

    async def workers(self) -> list[WorkerRecord]:
        """The live workers, by name.

        Raises:
            BatonError: UNAVAILABLE when Redis does not answer.
        """
        records = await self._reader.workers()
        self.follower.members([record.worker for record in records])
        return records

    async def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        """For each worker how many of the leading `hashes` it owns; {} when Redis has not answered for long."""
        return self.follower.longest_prefixes(hashes, workers)

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self.follower.close()
        await self._reader.close()
