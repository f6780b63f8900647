"""Starts the client's processes, begins the load in all of them at once, and gathers what they send back."""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec

from baton.bench.load.lag import ClientLag
from baton.bench.load.messages import Broken, Done, Progress, Ready, Share, Start, Stop, encode, from_process
from baton.bench.load.options import LoadOptions, check_load
from baton.bench.load.process import run_process
from baton.bench.load.sender import Counts
from baton.bench.rows import RequestRow
from baton.bench.targets.base import Served, now_s
from baton.bench.targets.registry import make_target
from baton.errors import BatonError, ErrorCode

_LEAD_S = 0.1  # between telling the processes and the start
_POLL_S = 0.2
_END_S = 10.0  # a process has so long to exit after its last message


class LoadResult(msgspec.Struct):
    """What came of a load."""

    rows: list[RequestRow]  # by the time they were sent
    lags: list[ClientLag]  # by process
    interrupted: bool  # by Ctrl-C: the rows are those until then
    notes: Sequence[str] = ()


def ask_target(options: LoadOptions) -> Served:
    """What the target serves under the name that is asked for.

    Raises:
        BatonError: as `make_target` and `Target.served`.
    """

    async def ask() -> Served:
        async with make_target(options.target, options.temperature) as target:
            return await target.served(options.model)

    return asyncio.run(ask())


def run_load(options: LoadOptions, on_progress: Callable[[Counts], None] = lambda counts: None) -> LoadResult:
    """Runs the load to its end; after Ctrl-C, what has come until then.

    Raises:
        BatonError: INVALID_ARGUMENT for options that make no load; what a process could not go on for; INTERNAL when
            a process dies.
        KeyboardInterrupt: when there was nothing to keep yet, or for a second Ctrl-C.
    """
    check_load(options)
    fleet = _Fleet(options)
    try:
        fleet.wait_until_ready()
        fleet.start()
        interrupted = False
        while not fleet.ended:
            try:
                fleet.poll()
                on_progress(fleet.counts)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                fleet.stop()
        rows = sorted((row for done in fleet.done for row in done.rows), key=lambda row: row.sent_s)
        return LoadResult(rows, [done.lag for done in fleet.done], interrupted)
    finally:
        fleet.close()


class _Fleet:
    def __init__(self, options: LoadOptions) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._ready = 0
        self._done: dict[int, Done] = {}
        self._counts = [Counts() for _ in range(options.num_processes)]
        context = multiprocessing.get_context("spawn")
        # Ctrl-C reaches all processes of the terminal. These inherit that it is ignored, and are told by their pipes. A
        # mask would not do: multiprocessing takes it off again.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for number in range(options.num_processes):
                mine, theirs = context.Pipe()
                process = context.Process(target=run_process, args=(Share(options, number), theirs), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(mine)
                self._processes.append(process)
        finally:
            signal.signal(signal.SIGINT, before)

    @property
    def ended(self) -> bool:
        return len(self._done) == len(self._processes)

    @property
    def done(self) -> list[Done]:
        """By process."""
        return [self._done[number] for number in sorted(self._done)]

    @property
    def counts(self) -> Counts:
        """Of all processes together."""
        names = Counts.__struct_fields__
        return Counts(*(sum(getattr(counts, name) for counts in self._counts) for name in names))

    def wait_until_ready(self) -> None:
        while self._ready < len(self._processes):
            self.poll()

    def start(self) -> None:
        self._tell(Start(now_s() + _LEAD_S))

    def stop(self) -> None:
        self._tell(Stop())

    def poll(self) -> None:
        """Takes what has come, and waits a little for it."""
        open_pipes = [pipe for number, pipe in enumerate(self._pipes) if number not in self._done]
        for pipe in wait(open_pipes, _POLL_S):
            number = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                message = from_process.decode(self._pipes[number].recv_bytes())
            except (EOFError, ConnectionResetError) as error:
                self._processes[number].join(_END_S)
                raise BatonError(
                    ErrorCode.INTERNAL,
                    f"process {number} of the client died with exit code {self._processes[number].exitcode}; what it "
                    "wrote to stderr says why",
                ) from error
            match message:
                case Ready():
                    self._ready += 1
                case Progress(counts):
                    self._counts[number] = counts
                case Done():
                    self._done[number] = message
                case Broken(code, text):
                    raise BatonError(ErrorCode(code), text)

    def close(self) -> None:
        """Ends what still runs. Idempotent."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            if len(self._done) == len(self._processes):
                process.join(_END_S)
            if process.is_alive():
                process.kill()
            process.join()

    def _tell(self, message: Start | Stop) -> None:
        for number, pipe in enumerate(self._pipes):
            if number not in self._done:
                with contextlib.suppress(BrokenPipeError):  # it has ended; its last message is still to be read
                    pipe.send_bytes(encode(message))
