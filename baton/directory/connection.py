"""How this project talks to Redis: short timeouts, no hidden retries, one log line an outage."""

import logging
from collections.abc import Iterable

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from baton.errors import invalid

SOCKET_TIMEOUT_S = 1.0
FAILURES = (RedisError, OSError)  # what a call to a Redis that is down, restarting or unreachable raises


def check_url(redis_url: str) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
    """
    try:
        parse_url(redis_url)
    except ValueError as error:
        raise invalid(f"got --redis-url {redis_url!r}, expected redis://host:port/0 ({error})") from error


def connect(redis_url: str) -> redis.asyncio.Redis:
    """A client that connects at its first call.

    Raises:
        BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
    """
    check_url(redis_url)
    return redis.asyncio.Redis.from_url(
        redis_url,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def is_wrong_type(answer: object) -> bool:
    """Whether a command of a pipeline has failed because its key holds another type than that command's."""
    return isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)


def raise_first(answers: Iterable[object]) -> None:
    """Raises the first error among the answers of a pipeline."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


class OutageLog:
    """Logs the first failure of an outage and its end."""

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        """`consequence`: what the outage means for serving, as the second half of a sentence."""
        self._logger = logger
        self._consequence = consequence
        self.down = False

    def failed(self, error: Exception) -> None:
        """A call failed."""
        if not self.down:
            self._logger.warning("Redis does not answer (%s): %s", error, self._consequence)
        self.down = True

    def answered(self) -> None:
        """A call succeeded."""
        if self.down:
            self._logger.info("Redis answers again")
        self.down = False
