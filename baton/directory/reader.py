"""The directory as a gateway reads it: who lives, and who owns the longest prefix of a prompt."""

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from baton import faults
from baton.directory.base import WorkerRecord, blocks_key, worker_key, workers_key
from baton.directory.connection import FAILURES, OutageLog, connect, is_wrong_type, raise_first, uncancelled
from baton.directory.metrics import RedisMetrics
from baton.errors import BatonError, ErrorCode
from baton.faults import Point
from baton.telemetry.exposition import Metrics
from baton.types import WorkerRef

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_record_decoder = msgspec.json.Decoder(WorkerRecord)

# Takes a name off the list, unless its worker has registered since the reader looked.
_REMOVE_IF_DEAD = "return redis.call('EXISTS', KEYS[2]) == 0 and redis.call('SREM', KEYS[1], ARGV[1])"


class DirectoryReader:
    """Reads the directory of one model. No call takes much longer than a second, also when Redis is down."""

    def __init__(self, redis_url: str, model_fingerprint: str, metrics: RedisMetrics | None = None) -> None:
        """Connects at the first call.

        Raises:
            BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
        """
        self._redis = connect(redis_url)
        self._metrics = metrics or RedisMetrics(Metrics())
        self._redis_url = redis_url
        self._fingerprint = model_fingerprint
        self._outage = OutageLog(logger, "prefix look-ups become misses; known workers stay in use")

    async def workers(self) -> list[WorkerRecord]:
        """The live workers, by name. Names whose lease has run out are taken off the list in Redis.

        Raises:
            BatonError: UNAVAILABLE when Redis does not answer.
        """
        try:
            with self._metrics.round():
                names, records = await uncancelled(self._read_records())
        except FAILURES as error:
            self._outage.failed(error)
            message = f"the worker directory in Redis does not answer ({error}); check --redis-url and that Redis runs"
            raise BatonError(ErrorCode.UNAVAILABLE, message, retry_after_s=1.0) from error
        self._outage.answered()
        found = [_decode(name, data) for name, data in zip(names, records, strict=True) if data is not None]
        return [record for record in found if record is not None]

    async def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        """For each worker how many of the leading `hashes` it owns; {} when Redis does not answer."""
        if not hashes or not workers:
            return dict.fromkeys(workers, 0)
        try:
            with self._metrics.round():
                answers = await uncancelled(self._read_owned(hashes, workers))
        except FAILURES as error:
            self._outage.failed(error)
            return {}
        self._outage.answered()
        return {worker: _leading(owned) for worker, owned in zip(workers, answers, strict=True)}

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self._redis.aclose()

    async def _read_records(self) -> tuple[list[bytes], list[bytes | None]]:
        faults.at(Point.DIRECTORY_READ)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.smembers(workers_key(self._fingerprint))
            names = sorted((await pipe.execute())[0])
        if not names:
            return [], []
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:  # not MGET: Redis Cluster's clients have none in a pipeline
                pipe.get(worker_key(self._fingerprint, _text(name)))
            answers = await pipe.execute(raise_on_error=False)
        records: list[bytes | None] = [None if is_wrong_type(answer) else answer for answer in answers]
        raise_first(records)
        dead = [name for name, record in zip(names, records, strict=True) if record is None]
        if dead:
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in dead:
                    keys = workers_key(self._fingerprint), worker_key(self._fingerprint, _text(name))
                    pipe.eval(_REMOVE_IF_DEAD, len(keys), *keys, name)
                await pipe.execute()
        return names, records

    async def _read_owned(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> list[list[int]]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for worker in workers:
                pipe.smismember(blocks_key(self._fingerprint, worker), list(hashes))
            answers = await pipe.execute(raise_on_error=False)
        # A key that something else has written to says nothing of the other workers; its worker repairs it.
        owned = [[] if is_wrong_type(answer) else answer for answer in answers]
        raise_first(owned)
        return owned


def _text(name: bytes) -> str:
    """Of a name that no worker wrote, something that has no record: so it counts as dead and is removed."""
    return name.decode(errors="replace")


def _leading(owned: Sequence[int]) -> int:
    """How many ones stand before the first zero."""
    for index, value in enumerate(owned):
        if not value:
            return index
    return len(owned)


def _decode(name: bytes, data: bytes) -> WorkerRecord | None:
    try:
        return _record_decoder.decode(data)
    except msgspec.DecodeError as error:
        logger.warning("ignoring the malformed record of worker %s: %s", name.decode(errors="replace"), error)
        return None
