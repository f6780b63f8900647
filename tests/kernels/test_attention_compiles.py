"""The attention kernels compile for GPUs that this machine lacks, and keep their state in registers.

The interpreter, in which the other tests run, takes what the compiler refuses. So a child process without it compiles
the default configurations, for Hopper cards and for an A100.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_default_configurations_compile_without_spills(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.compile_attention"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 13, done.stdout
    assert all(line.endswith(" 0 bytes of stack") for line in lines), done.stdout
