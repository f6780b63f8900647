"""The HTTP server in the gateway's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from baton.errors import BatonError, ErrorCode
from baton.tls import Tls

_CLOSE_S = 1  # for requests under way
_BACKLOG = 2048
_LOOK_EVERY_S = 1.0
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed under a request


class _Quiet(uvicorn.Server):
    """Leaves the process's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: whoever owns the process stops this server."""
        yield


class HttpServer:
    """One listening server."""

    def __init__(self, app: ASGIApp, tls: Tls | None = None, shared_port: bool = False) -> None:
        """`shared_port`: other processes may listen there, too.

        Raises:
            BatonError: FAILED_PRECONDITION when `tls` has no certificate.
        """
        self._shared_port = shared_port
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        config.load()
        self._tls = tls
        if tls is not None:
            config.ssl = tls.server_context()
        self._server = _Quiet(config)
        self._watching: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; 0 asks for a free one.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken or `host` is no address of this machine.
        """
        listener = _listen(host, port, self._shared_port)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http server")
        if self._tls is not None:
            self._watching = asyncio.create_task(_watch(self._tls), name="certificates")
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Stops accepting, gives running requests a second, then ends them. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
        if self._task is not None:
            self._server.should_exit = True
            await self._task


async def _watch(tls: Tls) -> None:
    """Looking at the files renews the server's certificate."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        _ = tls.generation


def _listen(host: str, port: int, shared: bool) -> socket.socket:
    """Connections wait in the backlog until the server takes them."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        listener.close()
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"cannot listen on {host}:{port} ({error}); choose another --http-port, unless --host is no address of "
            "this machine",
        ) from error
    return listener
