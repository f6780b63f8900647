"""The file of API keys, read again when it changes."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from baton.api_keys import ApiKey, read_keys
from baton.errors import BatonError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class KeyFile:
    """Looks at the file once a second at most, when a key is asked for."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises:
        BatonError: as `read_keys`.
        """
        self._file = file
        self._clock = clock
        self._stamp = _stamp(file)
        self._book = read_keys(file)
        self._look_at = clock() + _LOOK_EVERY_S

    def find(self, presented: str) -> ApiKey | None:
        """The entry of a key. A file that has become unreadable changes nothing; the log says so, once."""
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + _LOOK_EVERY_S
            if (stamp := _stamp(self._file)) != self._stamp:
                self._stamp = stamp
                self._read()
        return self._book.find(presented)

    def _read(self) -> None:
        try:
            self._book = read_keys(self._file)
        except BatonError as error:
            logger.error("keeping the API keys as they were: %s", error)
            return
        logger.info("read %d API keys from %s", len(self._book.keys), self._file)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Changes with the file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
