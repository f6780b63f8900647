"""One benchmark result as one JSON line, with what is needed to run it again."""

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> str:
    """The CPU's name, its core count and its memory."""
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB"


def commit() -> str:
    """The commit the working tree stands on, with `-dirty` when it has changed since (results aside).

    BATON_COMMIT says it where the tree was copied to a machine without its history.
    """
    if told := os.environ.get("BATON_COMMIT"):
        return told
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run(
        [
            *git,
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            ".",
            ":!benchmarks/results",
            ":!docs",
            ":!README.md",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return head.strip() + ("-dirty" if changed else "")


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
        "torch": torch.__version__,
        "commit": commit(),
        "command": " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
    }


def write(name: str, lines: list[dict[str, Any]]) -> Path:
    """Writes benchmarks/results/NAME.jsonl, replacing what an earlier run left."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
