"""The folder of one run (logs, port files) and the run file, by which other commands find a running stack."""

import os
import shutil
import time
from pathlib import Path

import msgspec

from baton.fetch import home

_KEPT_RUNS = 8
_RUN_FILE = "stack.json"


class RunFile(msgspec.Struct, frozen=True):
    """What `baton up` tells other commands."""

    launcher_pid: int
    gateway_address: str
    traces_address: str
    run_folder: str


def runs_dir() -> Path:
    """Where all runs have their folders."""
    return home() / "run"


def new_run_folder() -> Path:
    """An empty folder for this run. Older ones, but the newest few and those of running stacks, are removed."""
    runs_dir().mkdir(parents=True, exist_ok=True)
    folders = sorted(folder for folder in runs_dir().iterdir() if folder.is_dir())
    for folder in folders[: -(_KEPT_RUNS - 1)]:
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    created = runs_dir() / f"{moment}-{nanoseconds:09d}-{os.getpid()}"  # sorts by time
    created.mkdir()
    return created


def write_run_file(content: RunFile) -> None:
    """Lets other commands find this stack."""
    file = Path(content.run_folder) / _RUN_FILE
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(content))
    temporary.replace(file)


def remove_run_file(run_folder: Path) -> None:
    """Other commands find this stack no more. Idempotent."""
    (run_folder / _RUN_FILE).unlink(missing_ok=True)


def read_run_file() -> RunFile | None:
    """The running stack that was started last, or None (a stack that was killed leaves a file behind: not counted)."""
    for file in sorted(runs_dir().glob(f"*/{_RUN_FILE}"), reverse=True):
        try:
            content = msgspec.json.decode(file.read_bytes(), type=RunFile)
        except FileNotFoundError:
            continue  # that stack has just stopped
        if _is_alive(content.launcher_pid):
            return content
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
