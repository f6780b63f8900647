"""An engine core's process as its service sees it: started with one end of a socket pair, its last words remembered."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

# -P where this process has it: then the current directory must not be searched for modules.
CORE_COMMAND = (sys.executable, *(("-P",) if sys.flags.safe_path else ()), "-m", "engine.process")
_STDERR_TAIL_BYTES = 4096
_LAST_LINES = 8
_REFUSAL = "error: "  # begins the line with which the core refuses to start
# How often a thread looks at a barrier of OpenMP's before it sleeps. By default it looks for milliseconds: when another
# process has taken the core of the thread that is waited for, every barrier of every layer then costs a time slice.
# On 2 cores beside one busy process a token took 400 to 900 ms with the default, about 65 ms with this (docs/log.md).
_SPINCOUNT = "2000"
_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def core_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ`, with short waits in OpenMP's barriers unless it says itself how to wait.

    libgomp reads it once, when torch loads it: it has to be there before a process imports torch.
    """
    spins = {} if any(name in environ for name in _SPIN_VARIABLES) else {"GOMP_SPINCOUNT": _SPINCOUNT}
    return {**environ, **spins}


class CoreProcess:
    """One child process, of its parent's process group: what kills the group leaves no core behind."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stderr_tail = b""
        self._stderr_task = asyncio.create_task(self._pass_stderr_on())

    @classmethod
    async def spawn(cls, command: Sequence[str]) -> tuple["CoreProcess", socket.socket]:
        """Starts `command --fd N`, where N is its end of the socket pair; the other end is returned, non-blocking."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=core_environment(),
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(process), ours

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def ended(self) -> None:
        """Waits for its end."""
        await self._process.wait()

    async def wait(self, timeout_s: float) -> str:
        """How it ended, with its last lines where it failed; killed first when it is still there after `timeout_s`."""
        try:
            code = await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        # A grandchild may hold stderr open: the child's own last words are there by now.
        await asyncio.wait([self._stderr_task], timeout=0.5)
        self._stderr_task.cancel()
        ending = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = self.last_lines()
        return f"({ending})" + (f": {lines}" if code != 0 and lines else "")

    def kill(self) -> None:
        """SIGKILL, unless it has ended already."""
        if self._process.returncode is None:
            self._process.kill()

    def last_lines(self) -> str:
        """The end of its stderr; of the last lines only the `error: ...` one where the core refused to start."""
        lines = [line.strip() for line in self._stderr_tail.decode(errors="replace").splitlines() if line.strip()]
        refusals = [line.removeprefix(_REFUSAL) for line in lines if line.startswith(_REFUSAL)]
        return refusals[-1] if refusals else " | ".join(lines[-_LAST_LINES:])

    async def _pass_stderr_on(self) -> None:
        assert self._process.stderr is not None
        unfinished = b""
        while data := await self._process.stderr.read(65536):
            self._stderr_tail = (self._stderr_tail + data)[-_STDERR_TAIL_BYTES:]
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                _pass_on(line + b"\n")
            if len(unfinished) > _STDERR_TAIL_BYTES:
                _pass_on(unfinished)
                unfinished = b""
        _pass_on(unfinished)


def _pass_on(line: bytes) -> None:
    """All but a refusal: whoever started the core tells that itself, with what `last_lines` says."""
    if not line.startswith(_REFUSAL.encode()):
        sys.stderr.write(line.decode(errors="replace"))
        sys.stderr.flush()
