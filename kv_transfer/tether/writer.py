"""The sender's ends of its tethers: tells each pool's owner when writes of a grant begin and when they have ended."""

import errno
import socket

from baton.errors import BatonError, ErrorCode
from kv_transfer.tether.wire import BEGIN, END, TOKEN_BYTES, TetherAddress, key_of, set_options


class _Tether:
    """One connection: being made, greeted, or broken with a reason."""

    def __init__(self, peer_id: str, address: TetherAddress) -> None:
        self._peer_id = peer_id
        self._token = address.token
        self._greeting = b""
        self._begun: set[bytes] = set()
        self._untold: set[bytes] = set()  # whose `begin` is not yet on its way
        self._outbox = b""
        self._broken = ""
        self._sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        set_options(self._sock)
        try:
            code = self._sock.connect_ex((address.host, address.port))
        except OSError as error:  # an address that is none
            self._break(str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._break(errno.errorcode.get(code, str(code)))

    def begin(self, key: bytes) -> bool:
        self._listen()
        if self._broken:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"decode worker {self._peer_id}: the connection that tells it of KV writes is broken ({self._broken}); "
                "send the request again, and check that this host can reach that worker's --host",
            )
        if len(self._greeting) < TOKEN_BYTES:
            return False
        if key not in self._begun:
            self._begun.add(key)
            self._untold.add(key)
            self._send(BEGIN + key)
        return key not in self._untold and not self._broken

    def end(self, key: bytes) -> None:
        if key in self._begun:
            self._begun.discard(key)
            self._send(END + key)

    def poll(self) -> None:
        """Goes on with what could not be done at once."""
        if len(self._greeting) < TOKEN_BYTES:
            self._listen()
        if self._outbox:
            self._send(b"")

    def close(self) -> None:
        self._sock.close()

    def _listen(self) -> None:
        """Takes the greeting, and notices the end."""
        if self._broken:
            return
        try:
            data = self._sock.recv(TOKEN_BYTES + 1)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # which a connection under way says
                self._break(str(error))
            return
        self._greeting += data
        if not data:
            self._break("closed by that worker")
        elif not self._token.startswith(self._greeting):
            self._break("somebody else answers at its address")

    def _send(self, frame: bytes) -> None:
        self._outbox += frame
        if self._broken:
            return
        try:
            self._outbox = self._outbox[self._sock.send(self._outbox) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._break(str(error))
            return
        if not self._outbox:
            self._untold.clear()

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._sock.close()


class Tethers:
    """One sender's tethers, by peer id. Nothing here waits; all errors come out of `begin`."""

    def __init__(self) -> None:
        self._tethers: dict[str, _Tether] = {}

    def open(self, peer_id: str, address: TetherAddress) -> None:
        """Begins to connect."""
        self._tethers[peer_id] = _Tether(peer_id, address)

    def begin(self, peer_id: str, grant_id: str) -> bool:
        """As `KVSender.begin`."""
        return self._tethers[peer_id].begin(key_of(grant_id))

    def end(self, peer_id: str, grant_id: str) -> None:
        """As `KVSender.end`."""
        if peer_id in self._tethers:
            self._tethers[peer_id].end(key_of(grant_id))

    def poll(self) -> None:
        """Makes progress with connections and words that are under way."""
        for tether in self._tethers.values():
            tether.poll()

    def close(self, peer_id: str) -> None:
        """Ends a connection, which says that nothing is or will be written over there. Idempotent."""
        if peer_id in self._tethers:
            self._tethers.pop(peer_id).close()

    def close_all(self) -> None:
        """Ends all. Idempotent."""
        for peer_id in list(self._tethers):
            self.close(peer_id)
