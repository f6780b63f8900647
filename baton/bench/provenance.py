"""Where a figure comes from: machine, code, command, day; the common part of every result line."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def machine() -> str:
    """The CPU's name, its core count and its memory."""
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB"


def commit() -> str:
    """The commit the working tree stands on, with `-dirty` when it has changed since (results and docs aside).

    BATON_COMMIT says it where the tree was copied to a machine without its history; without either, as in an installed
    package, it is "unknown".
    """
    if told := os.environ.get("BATON_COMMIT"):
        return told
    kept = [".", ":!benchmarks/results", ":!docs", ":!README.md"]
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *kept)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("-dirty" if changed else "")


def torch_version() -> str | None:
    """Without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def command_line() -> str:
    """How this process was started: `baton …` for the command, else `python FILE …` from the repository's root."""
    program = Path(sys.argv[0])
    words = ["baton"] if program.name in ("baton", "__main__.py") else ["python", os.path.relpath(program, ROOT)]
    return shlex.join([*words, *sys.argv[1:]])


def result(metric: str, model: str, params: dict[str, Any], value: float, unit: str, **more: Any) -> dict[str, Any]:
    """A result line; `more` may hold floor, baseline {"name", "value"}, gpu."""
    return {
        "metric": metric,
        "model": model,
        "params": params,
        "value": round(value, 3),
        "unit": unit,
        **more,
        "machine": machine(),
        "torch": torch_version(),
        "commit": commit(),
        "command": command_line(),
        "date": datetime.date.today().isoformat(),
    }


def _git(*arguments: str) -> str:
    git = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout
