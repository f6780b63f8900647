"""How fetching tells its progress, without knowing of terminals."""

from collections.abc import Callable

# stage ("download", "check", "convert"), done, total; all in bytes. The first call of a stage has done = 0.
Progress = Callable[[str, int, int], None]


def no_progress(stage: str, done: int, total: int) -> None:
    """Tells nobody."""
