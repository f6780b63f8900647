"""A Redis in memory, as far as the directory's reader and registrar use it: with times to live, outages and flushes."""

import asyncio
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

Reach = Callable[[], bool]


class SimulatedRedis:
    """The server."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.up = True
        self.waiting: list[asyncio.Future[None]] = []  # for an entry of any stream
        self._now_s = now_s
        self._values: dict[str, tuple[Any, float]] = {}  # key -> value, end of life

    def flush(self) -> None:
        """Forgets everything, as a restart without a disk does."""
        self._values.clear()

    def client(self, may_run: Callable[[], Any]) -> "SimulatedClient":
        """`may_run` is awaited before each round trip: a process that is stopped talks to nobody."""
        return SimulatedClient(self, may_run)

    def live(self, key: str) -> Any:
        """A key's value, or None."""
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._now_s() else None

    def put(self, key: str, value: Any, ttl_s: float = 1e12) -> None:
        """Sets a key."""
        self._values[key] = (value, self._now_s() + ttl_s)

    def execute(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """One command."""
        return getattr(self, f"_{name}")(*args, **kwargs)

    def _smembers(self, key: str) -> set[bytes]:
        return set(self.live(key) or ())

    def _mget(self, keys: list[str]) -> list[Any]:
        return [self.live(key) for key in keys]

    def _get(self, key: str) -> Any:
        return self.live(key)

    def _eval(self, script: str, count: int, names: str, record: str, name: bytes) -> int:
        if self.live(record) is None:
            return self._srem(names, name)
        return 0

    def _smismember(self, key: str, members: list[bytes]) -> list[int]:
        have = self.live(key) or ()
        return [int(member in have) for member in members]

    def _set(self, key: str, value: bytes, px: int, get: bool = False) -> Any:
        before = self.live(key)
        self.put(key, value, px / 1000)
        return before if get else True

    def _sadd(self, key: str, *members: Any) -> int:
        have = self.live(key)
        if have is None:
            have = set()
            self.put(key, have)
        have.update(member.encode() if isinstance(member, str) else member for member in members)
        return len(members)

    def _srem(self, key: str, *members: Any) -> int:
        (self.live(key) or set()).difference_update(members)
        return len(members)

    def _pexpire(self, key: str, ms: int) -> int:
        if self.live(key) is not None:
            self.put(key, self.live(key), ms / 1000)
        return 1

    def _scard(self, key: str) -> int:
        return len(self.live(key) or ())

    def _xadd(self, key: str, fields: dict[bytes, bytes], maxlen: int, approximate: bool) -> bytes:
        entries = self.live(key)
        if entries is None:
            entries = []
            self.put(key, entries)
        # As a server that starts anew counts: from the time on, which is not behind what it knows.
        before = _order(entries[-1][0]) if entries else (0, 0)
        number = max((int(self._now_s() * 1000), 0), (before[0], before[1] + 1))
        entries.append((b"%d-%d" % number, fields))
        del entries[:-maxlen]
        for added in self.waiting:
            if not added.done():
                added.set_result(None)
        self.waiting.clear()
        return bytes(entries[-1][0])

    def _xlen(self, key: str) -> int:
        return len(self.live(key) or ())

    def _xrevrange(self, key: str, count: int) -> list[Any]:
        return list(reversed((self.live(key) or [])[-count:]))

    def xread(self, key: str, after: bytes, count: int) -> list[Any]:
        """Entries behind `after`, as XREAD answers for one stream."""
        found = [entry for entry in self.live(key) or () if _order(entry[0]) > _order(after)][:count]
        return [(key.encode(), found)] if found else []

    def _sscan(self, key: str, cursor: int, count: int) -> tuple[int, list[bytes]]:
        return 0, sorted(self.live(key) or ())

    def _delete(self, *keys: str) -> int:
        for key in keys:
            self._values.pop(key, None)
        return len(keys)


class SimulatedClient:
    """A connection."""

    def __init__(self, server: SimulatedRedis, may_run: Callable[[], Any]) -> None:
        self.server = server
        self.may_run = may_run

    def pipeline(self, transaction: bool) -> "_Pipeline":
        return _Pipeline(self)

    async def xread(self, streams: dict[str, bytes], count: int, block: int) -> list[Any]:
        """Waits for an entry for `block` ms at most."""
        ((key, after),) = streams.items()
        found = await self._look(key, after, count)
        if not found:
            added = asyncio.get_running_loop().create_future()
            self.server.waiting.append(added)
            await asyncio.wait([added], timeout=block / 1000)
            found = await self._look(key, after, count)
        return found

    async def _look(self, key: str, after: bytes, count: int) -> list[Any]:
        await self.may_run()
        await asyncio.sleep(0.0005)
        if not self.server.up:
            raise RedisConnectionError("simulated: Redis is down")
        return self.server.xread(key, after, count)

    async def aclose(self) -> None:
        return


class _Pipeline:
    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._commands: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    async def __aenter__(self) -> "_Pipeline":
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self._commands.append((name, args, kwargs))

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []
        await self._client.may_run()
        await asyncio.sleep(0.0005)
        server = self._client.server
        if not server.up:
            raise RedisConnectionError("simulated: Redis is down")
        return [server.execute(name, *args, **kwargs) for name, args, kwargs in commands]


def _order(number: bytes) -> tuple[int, int]:
    first, second = number.split(b"-")
    return int(first), int(second)
