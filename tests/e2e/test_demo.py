"""`baton demo`, the first thing that a newcomer runs."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil


def processes_with(mark: str) -> list[psutil.Process]:
    """Those that inherited an environment variable of this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or not ours
    return found


def test_demo_answers_shows_the_trace_and_leaves_nothing_behind(smollm2: Path) -> None:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "baton.cli", "demo"],
        env={**os.environ, "DEMO_MARK": mark},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("TTFT", "ITL", "prefill-0 → decode-0", "blocks", "gateway.request", "kv.transfer", "decode.run"):
        assert words in done.stdout
    assert "Gravity" in done.stdout  # greedy, so the answer is known to speak of it
    assert processes_with(mark) == []
