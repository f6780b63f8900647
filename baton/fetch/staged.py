"""Building a model folder beside its final place, so that a folder under its final name is always whole."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from baton.fetch.cache import cached_folder, fetch_lock, models_dir, partial_folder
from baton.fetch.checksums import quick_problem


class Stage:
    """A fetch in progress. `work` outlives an interruption; `out` is empty at the start and becomes the model."""

    def __init__(self, work: Path, out: Path) -> None:
        self.work = work
        self.out = out


def fetched(name: str) -> Path | None:
    """The model's folder if it is there and looks whole (see `quick_problem`)."""
    folder = cached_folder(name)
    return folder if folder.is_dir() and quick_problem(folder) is None else None


@contextlib.contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Gives a `Stage`; a normal exit moves `out` to the model's place, any other keeps `work` for the next try.

    Hold `fetch_lock` around it. A folder that is already there is replaced; whoever has its files open keeps them.
    """
    work = partial_folder(name)
    out = work / "model"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        yield Stage(work, out)
    except BaseException:
        shutil.rmtree(out)
        with contextlib.suppress(OSError):
            work.rmdir()  # unless there is something in it for the next try
        raise
    final = cached_folder(name)
    old = work / "replaced"
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    out.rename(final)
    shutil.rmtree(work)


def fetch_once(name: str, build: Callable[[Stage], None], on_wait: Callable[[], None], force: bool = False) -> Path:
    """The model's folder: at once if it is there and whole, else after `build` has filled a stage.

    Two processes that ask for the same model build it once; the second waits (`on_wait` is called) and finds it done.
    """
    models_dir().mkdir(parents=True, exist_ok=True)
    if not force and (folder := fetched(name)) is not None:
        return folder
    with fetch_lock(name, on_wait):
        if not force and (folder := fetched(name)) is not None:
            return folder
        with stage(name) as current:
            build(current)
    return cached_folder(name)
