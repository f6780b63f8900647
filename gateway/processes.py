"""Several gateway processes on one port: the kernel deals new connections out, and this one starts and stops them."""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from baton.errors import BatonError, ErrorCode
from baton.local import guard
from gateway.config import GatewayConfig

logger = logging.getLogger(__name__)

_LOOK_S = 0.05


class Processes:
    """All serve the same; when one ends by itself all are stopped, so that whoever watches over this starts it anew."""

    def __init__(self, config: GatewayConfig, arguments: Sequence[str]) -> None:
        """Takes the ports. `arguments`: of the command line that `config` was read from.

        Raises:
            BatonError: FAILED_PRECONDITION when a port is taken.
        """
        self._config = config
        self._arguments = list(arguments)
        self._port, self._http_port = _hold(config.host, config.port, "--port"), None
        if config.http_port is not None:
            self._http_port = _hold(config.host, config.http_port, "--http-port")
        self._children: list[asyncio.subprocess.Process] = []

    async def run(self, stop: asyncio.Event) -> int:
        """Until `stop`, or until a process ends by itself. The exit status."""
        stopping = asyncio.create_task(stop.wait())
        with tempfile.TemporaryDirectory(prefix="baton-gateway-") as folder:
            files = [Path(folder) / str(number) for number in range(self._config.processes)]
            try:
                for number, file in enumerate(files):
                    command = [sys.executable, guard.__file__, str(os.getpid()), sys.executable, "-m", "gateway"]
                    command += [*self._arguments, *self._own_arguments(number, file)]
                    self._children.append(await asyncio.create_subprocess_exec(*command))
                ends = [asyncio.create_task(child.wait()) for child in self._children]
                while not stopping.done() and not any(end.done() for end in ends):
                    if all(file.exists() for file in files):
                        self._tell_ports()
                        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
                        break
                    await asyncio.sleep(_LOOK_S)
                return self._verdict()
            finally:
                stopping.cancel()
                await self._stop()

    def _verdict(self) -> int:
        for number, child in enumerate(self._children):
            if child.returncode is not None:
                logger.error("gateway process %d has ended with %d; stopping all", number, child.returncode)
                return 1
        return 0

    def _own_arguments(self, number: int, port_file: Path) -> list[str]:
        """Behind those of all, and so instead of them."""
        config = self._config
        own = ["--gateway-processes", "1", "--shared-port", "--port", str(_port_of(self._port))]
        own += ["--port-file", str(port_file)]
        if self._http_port is not None:
            own += ["--http-port", str(_port_of(self._http_port)), "--http-port-file", f"{port_file}.http"]
        if config.metrics_port:
            own += ["--metrics-port", str(config.metrics_port + number)]
        if config.metrics_port_file is not None:
            own += ["--metrics-port-file", f"{config.metrics_port_file}{f'.{number}' if number else ''}"]
        return own

    def _tell_ports(self) -> None:
        config = self._config
        if config.http_port_file is not None and self._http_port is not None:
            write_atomically(config.http_port_file, str(_port_of(self._http_port)))
        if config.port_file is not None:
            write_atomically(config.port_file, str(_port_of(self._port)))

    async def _stop(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)
        for child in self._children:
            await child.wait()
        for held in (self._port, self._http_port):
            if held is not None:
                held.close()


def write_atomically(file: Path, text: str) -> None:
    """Whoever waits for the file never reads half of it."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(file)


def _port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _hold(host: str, port: int, flag: str) -> socket.socket:
    """Bound without listening, so that it gets no connections: the port stays ours while processes come and go.

    First without sharing: another program's port is not to be shared with it, whether or not it would allow that.
    """
    family, address = socket.AF_INET6 if ":" in host else socket.AF_INET, host.strip("[]")
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            port = _port_of(probe)
        held = socket.socket(family)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address, port))
    except (OSError, UnicodeError) as error:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"cannot listen on {host}:{port} ({error}); choose another {flag}, unless --host is no address of this "
            "machine",
        ) from error
    return held
