"""A terminal's progress bars for fetching."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LABELS = {"download": "Downloading", "check": "Checking", "convert": "Converting"}


class FetchBars:
    """Use as a context manager and pass `update` and `waiting` to `fetch_model`. Prints nothing if nothing happens."""

    def __init__(self, model: str, console: Console) -> None:
        self._model = model
        self._console = console
        columns = (TextColumn("{task.description:12}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._stage = ""
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._progress.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """One bar a stage, added when the stage starts; a stage that comes again later gets another bar."""
        if self._bar is None:
            self._progress.start()
        if self._bar is None or stage != self._stage:
            self._stage, self._bar = stage, self._progress.add_task(_LABELS.get(stage, stage), total=total)
        self._progress.update(self._bar, completed=done)

    def waiting(self) -> None:
        """Another process is fetching the same model."""
        self._console.print(f"Another process is fetching {self._model}; waiting for it.")
