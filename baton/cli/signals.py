"""SIGTERM and SIGHUP as exceptions, so that whoever owns processes stops them as after Ctrl-C."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal asked this process to stop; exits with 128 plus the signal's number if nobody catches it."""


@contextlib.contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise `Stopped` in the main thread; the old handlers come back at the end."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Stopped(128 + number)

    old = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
