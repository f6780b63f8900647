"""Many schedules in several processes, one a core; also what they counted."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parent.parent.parent


class Explored(NamedTuple):
    """What came of all schedules; `output` holds the failing ones, shrunk."""

    counts: dict[str, int]  # fault_schedules, wrong, leaked, lost
    output: str


def explore(schedules: int, processes: int = 2) -> Explored:
    """Seeds 0 to `schedules` - 1, a multiple of `processes`."""
    each = schedules // processes
    command = [sys.executable, "-m", "tests.simulation", "--schedules", str(each), "--first-seed"]
    environ = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{_ROOT / 'kernels'}"
    running = [
        subprocess.Popen([*command, str(number * each)], env=environ, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    outputs = [process.communicate()[0] for process in running]
    counts: Counter[str] = Counter()
    for output in outputs:
        last = json.loads(output.splitlines()[-1])
        counts.update({key: last[key] for key in ("fault_schedules", "wrong", "leaked", "lost")})
    return Explored(dict(counts), "\n".join(outputs))
