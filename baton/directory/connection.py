"""How this project talks to Redis: short timeouts, no hidden retries, one log line an outage."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from baton.errors import BatonError, ErrorCode, invalid
from baton.tls import Tls

SOCKET_TIMEOUT_S = 1.0
_CLUSTER = ("redis+cluster://", "rediss+cluster://")
FAILURES = (RedisError, OSError)  # what a call to a Redis that is down, restarting or unreachable raises

T = TypeVar("T")
Client = redis.asyncio.Redis | redis.asyncio.RedisCluster  # as far as both have pipelines, xread and aclose


def shown_url(redis_url: str) -> str:
    """For messages and logs: without what stands before the host or behind a ?, which may be a password."""
    scheme, slashes, rest = redis_url.partition("://")
    rest = rest if slashes else redis_url
    return (f"{scheme}://" if slashes else "") + rest.rpartition("@")[2].partition("?")[0]


def check_url(redis_url: str) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL.
    """
    try:
        parse_url(_plain(redis_url))
    except ValueError as error:
        problem = "" if set("@?") & set(redis_url) else f" ({error})"  # the error may repeat what stands there
        expected = "redis://host:port/0, redis+cluster://host:port for a Redis Cluster, or rediss://… for TLS"
        raise invalid(f"got --redis-url {shown_url(redis_url)!r}, expected {expected}{problem}") from None


def connect(redis_url: str, environ: Mapping[str, str] = os.environ) -> Client:
    """A client that connects at its first call; of a whole cluster where the URL says so.

    With rediss:// it uses TLS. User and password come from BATON_REDIS_USER and BATON_REDIS_PASSWORD, or the file that
    BATON_REDIS_PASSWORD_FILE names, unless the URL has them; with BATON_TLS_DIR the files there are used for TLS unless
    the URL names others (`?ssl_ca_certs=…&ssl_certfile=…&ssl_keyfile=…`).

    Raises:
        BatonError: INVALID_ARGUMENT when `redis_url` is no Redis URL, FAILED_PRECONDITION when the file of the password
            cannot be read.
    """
    check_url(redis_url)
    url = _plain(redis_url)
    given = parse_url(url)
    more = {name: value for name, value in _from_environment(url, environ).items() if name not in given}
    if redis_url.startswith(_CLUSTER):
        return redis.asyncio.RedisCluster.from_url(
            url,
            **more,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),  # so it follows a slot to another node
        )
    return redis.asyncio.Redis.from_url(
        url,
        **more,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _from_environment(redis_url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a client is told beside the URL."""
    found: dict[str, Any] = {}
    if user := environ.get("BATON_REDIS_USER"):
        found["username"] = user
    if file := environ.get("BATON_REDIS_PASSWORD_FILE"):
        try:
            found["password"] = Path(file).read_text().strip()
        except OSError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"cannot read BATON_REDIS_PASSWORD_FILE {file} ({error}); correct it"
            ) from error
    elif password := environ.get("BATON_REDIS_PASSWORD"):
        found["password"] = password
    if redis_url.startswith("rediss://") and (tls := Tls.from_environment(environ)):
        found["ssl_ca_certs"] = str(tls.folder / "ca.pem")
        if (tls.folder / "cert.pem").exists():
            found |= {"ssl_certfile": str(tls.folder / "cert.pem"), "ssl_keyfile": str(tls.folder / "key.pem")}
    return found


def _plain(redis_url: str) -> str:
    """The URL without what says that it is a cluster's."""
    return redis_url.replace("+cluster", "", 1) if redis_url.startswith(_CLUSTER) else redis_url


def is_wrong_type(answer: object) -> bool:
    """Whether a command of a pipeline has failed because its key holds another type than that command's."""
    return isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)


def raise_first(answers: Iterable[object]) -> None:
    """Raises the first error among the answers of a pipeline."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


async def uncancelled(work: Awaitable[T]) -> T:
    """Lets `work` end by itself when the caller is cancelled: redis-py 8.1 loses a cancellation inside its calls."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else looks at it
        raise


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
