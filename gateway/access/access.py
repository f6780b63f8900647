"""Whether a call may be served: its API key, and the key's limits. One way for gRPC and HTTP."""

import time
from collections.abc import Callable
from typing import Any

from baton.api_keys import ApiKey
from baton.errors import BatonError, ErrorCode, Reason, invalid
from gateway.access.key_file import KeyFile
from gateway.admission.base import Client
from gateway.admission.client import client_at

_BURST_S = 10.0  # requests of so long may come at once
_RUNNING_RETRY_S = 1.0
_OWN_ADDRESSES = ("127.0.0.1", "::1")
_MAX_IDLE = 1024  # usages that are remembered beyond those in use


class _Usage:
    """What one key has used: a bucket of requests that fills by the rate, and requests under way."""

    def __init__(self, now: float) -> None:
        self.tokens: float | None = None  # None: full
        self.at = now
        self.running = 0


class Caller:
    """Who makes a call."""

    def __init__(self, owner: "Access", client: Client, key: ApiKey | None) -> None:
        self.client = client
        self.key = key
        self._owner = owner

    def begin(self) -> Callable[[], None]:
        """A request for answers begins; what is returned is to be called at its end, once.

        Raises:
            BatonError: RESOURCE_EXHAUSTED when the key's rate or number of requests is used up.
        """
        return self._owner.begin(self.key) if self.key else _nothing

    def max_tokens(self, asked: int, explicit: bool) -> int:
        """How long an answer may be, for a client that asked for `asked`, or by default gets them.

        Raises:
            BatonError: INVALID_ARGUMENT when it asked for more than its key allows.
        """
        limit = self.key.max_tokens if self.key else None
        if limit is None or asked <= limit:
            return asked
        if explicit:
            raise invalid(f"max_tokens: got {asked}, expected at most {limit}, which is this API key's; lower it")
        return limit


class Access:
    """One a process; used on the event loop. Without a file of keys everybody may do everything but administration."""

    def __init__(self, keys: KeyFile | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._usage: dict[str, _Usage] = {}  # by key id

    def caller(self, context: Any) -> Caller:
        """Of a gRPC call, or of an HTTP request that looks like one.

        Raises:
            BatonError: UNAUTHENTICATED without a valid key, where keys are needed.
        """
        if self._keys is None:
            return Caller(self, client_at(context.peer()), None)
        presented = _bearer(context.invocation_metadata() or ())
        if presented is None:
            raise BatonError(
                ErrorCode.UNAUTHENTICATED,
                "no API key: send the header or metadata `authorization: Bearer KEY`",
                reason=Reason.MISSING_API_KEY,
            )
        key = self._keys.find(presented)
        if key is None:
            raise BatonError(
                ErrorCode.UNAUTHENTICATED,
                "the API key is not one of this gateway's; check it, or ask for another",
                reason=Reason.INVALID_API_KEY,
            )
        return Caller(self, Client(f"key:{key.id}", key.weight), key)

    def check_admin(self, context: Any) -> None:
        """Whether the caller may administrate: by its key, or where there are no keys, because it is on this machine.

        Raises:
            BatonError: UNAUTHENTICATED, or PERMISSION_DENIED.
        """
        caller = self.caller(context)
        if caller.key is None:
            if caller.client.name in _OWN_ADDRESSES or caller.client.name.startswith("unix:"):
                return
            message = "administration without API keys is for this machine only; start the gateway with --api-keys"
            raise BatonError(ErrorCode.PERMISSION_DENIED, message)
        if not caller.key.admin:
            message = f"API key {caller.key.name!r} may not administrate; use one made with `baton key new --admin`"
            raise BatonError(ErrorCode.PERMISSION_DENIED, message)

    def begin(self, key: ApiKey) -> Callable[[], None]:
        """For `Caller`."""
        now = self._clock()
        usage = self._usage.pop(key.id, None) or _Usage(now)
        self._forget()
        self._usage[key.id] = usage  # the newest last
        if key.max_concurrent is not None and usage.running >= key.max_concurrent:
            raise BatonError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"{usage.running} requests of API key {key.name!r} are under way, all that it may have; wait for one",
                _RUNNING_RETRY_S,
                Reason.TOO_MANY_CONCURRENT,
            )
        if key.requests_per_minute is not None:
            _take(usage, key, key.requests_per_minute / 60, now)
        usage.running += 1

        def end() -> None:
            usage.running -= 1

        return end

    def _forget(self) -> None:
        """Keys that do nothing: their buckets fill up again, the longest unused ones first."""
        if len(self._usage) > _MAX_IDLE:
            idle = [id for id, usage in self._usage.items() if not usage.running]
            for id in idle[: len(self._usage) - _MAX_IDLE]:
                del self._usage[id]


def _take(usage: _Usage, key: ApiKey, rate: float, now: float) -> None:
    """One request out of the bucket."""
    burst = max(1.0, rate * _BURST_S)
    tokens = burst if usage.tokens is None else min(burst, usage.tokens + (now - usage.at) * rate)
    usage.tokens, usage.at = tokens, now
    if tokens < 1:
        raise BatonError(
            ErrorCode.RESOURCE_EXHAUSTED,
            f"API key {key.name!r} may send {key.requests_per_minute:g} requests a minute; slow down",
            (1 - tokens) / rate,
            Reason.RATE_LIMITED,
        )
    usage.tokens = tokens - 1


def _bearer(metadata: Any) -> str | None:
    for name, value in metadata:
        if name == "authorization":
            kind, _, key = str(value).partition(" ")
            return key.strip() if kind.lower() == "bearer" and key.strip() else None
    return None


def _nothing() -> None:
    """There are no limits."""
