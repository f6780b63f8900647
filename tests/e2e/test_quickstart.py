"""docs/quickstart.md, followed command by command: each prints what the page's comments name."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
_BLOCK = re.compile(r"^```sh(?P<kind>[^\n]*)\n(?P<text>.*?)^```\n(?:<!-- prints: (?P<words>.*?) -->)?", re.M | re.S)
# Ports of the page's are free in a network of its own, whatever else runs here.
_OWN_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']


class Block(NamedTuple):
    """Commands of the page, and words that they print."""

    text: str
    words: list[str]
    foreground: bool  # it stays until the page's end


def blocks() -> list[Block]:
    found = _BLOCK.finditer(PAGE.read_text())
    return [Block(m["text"], (m["words"] or "").split(), m["kind"].strip() == "foreground") for m in found]


class Terminals:
    """Shells in a clone with `.venv` in it, in one network that has nothing but itself."""

    def __init__(self, clone: Path) -> None:
        outer = ("MAKE", "MFLAGS", "BATON_")  # of a make that runs these tests
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        if home := os.environ.get("BATON_HOME"):
            self._environment["BATON_HOME"] = home
        # What has been installed stays as it is: other tests use it.
        self._environment["MAKEFLAGS"] = "-o .venv/bin/.installed"
        self._clone = clone
        self._enter: list[str] = []
        self._anchor: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip"):
            self._anchor = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *_OWN_NETWORK, "sleep", "600"])
            self._enter = ["nsenter", f"--net=/proc/{self._anchor.pid}/ns/net"]
            self._wait_for_loopback()

    def run(self, text: str) -> str:
        """What the commands print."""
        command = [*self._enter, "sh", "-ec", text]
        done = subprocess.run(
            command, cwd=self._clone, env=self._environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, text: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
        """The command in the foreground of another terminal, until Ctrl-C."""
        with output.open("wb") as file:
            command = [*self._enter, "sh", "-ec", f"exec {text}"]
            process = subprocess.Popen(command, cwd=self._clone, env=self._environment, stdout=file, stderr=file)
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, output.read_text()
        finally:
            process.kill()
            process.wait()

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.kill()
            self._anchor.wait()

    def _wait_for_loopback(self) -> None:
        deadline_s = time.monotonic() + 10
        while "LOOPBACK,UP" not in self.run("ip link show lo"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.fixture
def terminals(smollm2: Path, tmp_path: Path) -> Iterator[Terminals]:
    clone = tmp_path / "clone"
    clone.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in (".venv", ".git"):
            (clone / entry.name).symlink_to(entry)
    (clone / ".venv").symlink_to(sys.prefix)
    opened = Terminals(clone)
    yield opened
    opened.close()


def assert_prints(words: list[str], output: str) -> None:
    assert [word for word in words if word not in output] == [], output


def test_the_page_does_what_it_says(terminals: Terminals, tmp_path: Path) -> None:
    page = blocks()
    assert len(page) == PAGE.read_text().count("```sh")
    with contextlib.ExitStack() as running:
        for index, block in enumerate(page):
            if block.foreground:
                output = tmp_path / f"{index}.log"
                process = running.enter_context(terminals.running(block.text, output))
                deadline_s = time.monotonic() + 120
                while any(word not in output.read_text() for word in block.words):
                    assert process.poll() is None, output.read_text()
                    assert time.monotonic() < deadline_s, output.read_text()
                    time.sleep(0.2)
            elif "/traces/" in block.text:  # where the machine is busy, a second is not enough for all spans
                _until_printed(terminals, block)
            else:
                assert_prints(block.words, terminals.run(block.text))


def _until_printed(terminals: Terminals, block: Block) -> None:
    deadline_s = time.monotonic() + 30
    while True:
        output = terminals.run(block.text)
        if all(word in output for word in block.words) or time.monotonic() > deadline_s:
            break
    assert_prints(block.words, output)


def test_all_documentation_that_the_page_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert links
    assert all((PAGE.parent / link).is_file() for link in links)
