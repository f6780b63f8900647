"""The Makefile, asked what it would do: nothing is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def planned(folder: Path, *arguments: str) -> list[str]:
    """The commands that make would run in a tree where nothing has been made yet."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "kernels/baton_kernels/cpu_layers.c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    outer = ("MAKE", "MFLAGS", "TORCH", "VENV", "PYTHON")  # of a make that runs these tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    command = ["make", "--no-print-directory", "-n", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_test_does_everything_from_an_empty_tree(tmp_path: Path) -> None:
    lines = planned(tmp_path, "test")
    steps = [
        "-m venv  .venv",
        "install --quiet --disable-pip-version-check torch==",
        "[worker,local]",
        "local,test,lint]",
    ]
    steps += ["baton fetch", "ruff check", "mypy", "lint-imports", "size_check", "grpcio-tools", "cmp ", "-m pytest"]
    found = [next(index for index, line in enumerate(lines) if step in line) for step in steps]
    assert found == sorted(found)
    assert found[-1] == len(lines) - 1


def test_an_empty_torch_keeps_the_one_that_is_there(tmp_path: Path) -> None:
    lines = planned(tmp_path, "TORCH=", "VENV_FLAGS=--system-site-packages", "demo")
    assert lines[0].endswith("-m venv --system-site-packages .venv")
    installs = [line for line in lines if " install " in line]
    assert len(installs) == 1
    assert installs[0].endswith("--editable '.[worker,local]'")


@pytest.mark.parametrize("torch", ["torch==2.12.0", "torch==2.13.0 --index-url https://example.org/cpu"])
def test_another_torch_can_be_named(tmp_path: Path, torch: str) -> None:
    assert any(
        line.endswith(f"install --quiet --disable-pip-version-check {torch}")
        for line in planned(tmp_path, f"TORCH={torch}")
    )


def test_continuous_integration_runs_make_test(tmp_path: Path) -> None:
    """In the repository, wherever it is called from; its last word is make's."""
    (tmp_path / "make").write_text('#!/bin/sh\necho "$PWD: make $*"\n')
    (tmp_path / "make").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"{ROOT}: make --no-print-directory test"
