"""What travels over a tether, and the options of its socket; docs/adr/0017.

The listener greets with the token that its endpoint names, so that nobody takes another process at its port for it. The
writer then sends frames of one size: what happens, and to which grant.
"""

import hashlib
import socket
from typing import Annotated

import msgspec

TOKEN_BYTES = 16
KEY_BYTES = 16
FRAME_BYTES = 1 + KEY_BYTES
BEGIN, END = b"B", b"E"

# A host that is gone or cut off is taken for dead after this long. A stopped process's kernel goes on answering.
_DEAD_HOST_S = 30
_PROBES = 5


class TetherAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a listener is, and how it greets."""

    host: Annotated[str, msgspec.Meta(max_length=64)]  # a numeric address: looking a name up could block
    port: Annotated[int, msgspec.Meta(gt=0, lt=2**16)]
    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


def key_of(grant_id: str) -> bytes:
    """A grant's name on the wire: of one size, whatever the id looks like."""
    return hashlib.blake2b(grant_id.encode(), digest_size=KEY_BYTES).digest()


def set_options(sock: socket.socket) -> None:
    """Non-blocking, each frame at once, and an end within bounds when the other host is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_HOST_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_HOST_S // 2 // _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_HOST_S * 1000)
