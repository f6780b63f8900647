"""The receiver's end of all tethers: which grants have a writer that has begun, has not ended, and still exists."""

import logging
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.errors import BatonError, ErrorCode
from kv_transfer.tether.wire import BEGIN, END, FRAME_BYTES, TOKEN_BYTES, TetherAddress, key_of, set_options

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
MAX_BEGUN = 65_536  # grants of one connection
_READ_BYTES = 64 << 10  # of one connection in one poll
_EVENTS_A_POLL = 64


@dataclass(frozen=True, slots=True)
class TetherOptions:
    """Where a receiver listens for its writers."""

    host: str = "127.0.0.1"
    advertised_host: str = ""  # what writers connect to; "": `host`
    linger_s: float = 2.0  # after a connection's end: what a writer that is gone had posted can still land that long


@dataclass(eq=False, slots=True)
class _Connection:
    sock: socket.socket
    begun: set[bytes] = field(default_factory=set)
    unread: bytes = b""
    deaf: bool = False  # it has broken the rules: its words do not count any more, its end does


class TetherListener:
    """Accepts writers and hears them, all in `poll`. Not for several threads.

    Raises:
        BatonError: FAILED_PRECONDITION when it cannot listen there.
    """

    def __init__(self, options: TetherOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._linger_s = options.linger_s
        self._clock = clock
        self._sock = _listen(options.host)
        self._token = os.urandom(TOKEN_BYTES)
        host = _resolve(options.advertised_host or options.host)[1][0]
        self.address = TetherAddress(host, self._sock.getsockname()[1], self._token)
        self._epoll = select.epoll()
        self._epoll.register(self._sock.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}  # by file descriptor
        self._writers: Counter[bytes] = Counter()  # of each grant, those that have left lately among them
        self._left: deque[tuple[float, set[bytes]]] = deque()  # until when they count, oldest first
        self._closed = False

    def writing(self, grant_id: str) -> bool:
        """Whether a write of this grant may be under way, as of the last `poll`."""
        return self._writers[key_of(grant_id)] > 0 if self._writers else False

    def poll(self) -> None:
        """Takes what has arrived; returns at once."""
        if self._closed:
            return
        for descriptor, _ in self._epoll.poll(0, _EVENTS_A_POLL):
            if descriptor == self._sock.fileno():
                self._accept()
            else:
                self._read(self._connections[descriptor])
        while self._left and self._left[0][0] <= self._clock():
            self._forget(self._left.popleft()[1])

    def _accept(self) -> None:
        try:
            sock, peer = self._sock.accept()
        except OSError as error:  # gone again, or no file descriptor is left
            logger.warning("a writer's connection was not accepted: %s", error)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            logger.warning("closed a writer's connection from %s: there are %d already", peer, MAX_CONNECTIONS)
            sock.close()  # without a greeting, so it begins nothing
            return
        set_options(sock)
        try:
            sock.send(self._token)  # fits into any empty buffer
        except OSError:
            sock.close()
            return
        self._connections[sock.fileno()] = _Connection(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            logger.info("a writer's connection broke: %s", error)
            data = b""
        if not data:
            self._leave(connection)
        elif not connection.deaf:
            data = connection.unread + data
            whole = len(data) - len(data) % FRAME_BYTES
            connection.unread = data[whole:]
            for at in range(0, whole, FRAME_BYTES):
                if not self._hear(connection, data[at : at + 1], data[at + 1 : at + FRAME_BYTES]):
                    break

    def _hear(self, connection: _Connection, kind: bytes, key: bytes) -> bool:
        """Takes one frame; False when nothing more is heard from there."""
        if kind == BEGIN and len(connection.begun) < MAX_BEGUN:
            if key not in connection.begun:
                connection.begun.add(key)
                self._writers[key] += 1
        elif kind == END:
            if key in connection.begun:
                connection.begun.discard(key)
                self._forget({key})
        else:
            logger.warning("a writer's connection sent nonsense or began too much: it is not heard any more")
            connection.deaf, connection.unread = True, b""
            if not connection.begun:
                self._leave(connection)
            return False
        return True

    def _leave(self, connection: _Connection) -> None:
        self._epoll.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        connection.sock.close()
        if connection.begun:
            self._left.append((self._clock() + self._linger_s, connection.begun))

    def _forget(self, keys: set[bytes]) -> None:
        self._writers.subtract(keys)
        for key in keys:
            if self._writers[key] <= 0:
                del self._writers[key]

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._epoll.close()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._sock.close()


def _resolve(host: str) -> tuple[int, tuple[str, int]]:
    """Address family and numeric address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise _refused(host, error) from error
    return family, (str(address[0]), 0)


def _listen(host: str) -> socket.socket:
    family, address = _resolve(host)
    try:
        sock = socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        raise _refused(host, error) from error
    sock.setblocking(False)
    return sock


def _refused(host: str, error: OSError) -> BatonError:
    return BatonError(
        ErrorCode.FAILED_PRECONDITION,
        f"kv connector: got host {host!r}, expected an address of this machine that prefill workers can reach "
        f"({error}); choose another --host or --advertise-address",
    )
