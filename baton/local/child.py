"""One child process of the launcher: started under guard, logging to a file, stopped for certain."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.errors import BatonError, ErrorCode
from baton.local import guard

_TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_POLL_S = 0.02
_NO_PROXY = "no_grpc_proxy"


class Child:
    """A running process in a process group of its own.

    The group keeps a terminal's Ctrl-C from reaching the child before the launcher stops things in order, and lets
    `kill` reach the processes that the child has started itself.
    """

    def __init__(
        self, name: str, command: Sequence[str], run_folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts it, with `environment` besides ours. Call on a thread that lives as long as the child (`guard`).

        Raises:
            OSError: when the process cannot be started at all.
        """
        self.name = name
        self.command = tuple(command)
        self.log_file = run_folder / f"{name}.log"
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1", _NO_PROXY: _no_proxy()} | dict(environment or {}),
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process id; the same before and after the guard's exec."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._process.poll()

    def check_running(self) -> None:
        """Raises:
        BatonError: INTERNAL with the end of its log, when it has ended.
        """
        code = self.exit_code()
        if code is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            raise BatonError(ErrorCode.INTERNAL, f"{self.name} {how}; {self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the log, with the file's name, for an error message."""
        with self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        lines = text.splitlines()[-_TAIL_LINES:]
        if not lines:
            return f"its log {self.log_file} is empty"
        return f"the end of {self.log_file}:\n" + "\n".join(f"  {line}" for line in lines)

    def terminate(self) -> None:
        """Asks it to stop (SIGTERM); returns at once."""
        if self.exit_code() is None:
            self._process.send_signal(signal.SIGTERM)

    def terminate_now(self) -> None:
        """As `terminate`, but a worker does not drain first: it stops at once on SIGINT.

        Both signals, because SIGINT alone is lost on a process that has not come as far as heeding it.
        """
        self.terminate()
        if self.exit_code() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, deadline_monotonic_s: float) -> bool:
        """Whether it has ended by then."""
        while self.exit_code() is None:
            if time.monotonic() >= deadline_monotonic_s:
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self) -> None:
        """Ends it and all processes of its group (SIGKILL), and waits until the kernel has it. Idempotent."""
        # The group lives on while any member does, even when its leader has ended; no member left is fine too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _no_proxy() -> str:
    """gRPC sends even loopback connections to the proxy of `http_proxy`, unless this variable excludes them."""
    configured = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy")
    return ",".join(filter(None, [configured, "127.0.0.1", "localhost"]))
