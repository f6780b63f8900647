"""A host of the tests' own: a dockerd in a network namespace, with an address that this machine reaches it at.

Its bridges, firewall rules and mounts are in namespaces of their own and go with them; its images and containers are in
one folder. Needs root.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_S = 60.0
STOP_S = 60.0
_FOLDER = "baton-docker-"
_NETNS, _LINKS, _TEMPORARY = Path("/run/netns"), Path("/sys/class/net"), Path(tempfile.gettempdir())


class Network:
    """A bridge that connects hosts with each other and with this machine."""

    def __init__(self) -> None:
        """Removes what tests that were killed have left first."""
        _remove_stale()
        self.name = f"bt{os.getpid()}"
        self.prefix = f"10.213.{os.getpid() % 250}"
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.prefix}.1/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def close(self) -> None:
        _ip("link", "del", self.name)


class Machine:
    """Starts at once.

    Raises:
        RuntimeError: dockerd does not start; with its last words.
    """

    def __init__(self, network: Network, number: int, folder: Path, images_of: "Machine | None" = None) -> None:
        """`folder`: empty, and with a short path, for a socket is in it. `images_of`: starts with its images."""
        self.address = f"{network.prefix}.{number + 1}"
        self.folder = folder
        self.name = f"{network.name}h{number}"
        self._cgroup = f"/{self.name}"
        self._root = folder / "root"
        if images_of is not None:
            _share_images(images_of._root, self._root)
        _ip("netns", "add", self.name)
        _ip("link", "add", f"{self.name}o", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", f"{self.name}o", "master", network.name, "up")
        for command in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            _ip("-n", self.name, *command)
        _ip("-n", self.name, "link", "set", "lo", "up")
        self._log = folder / "dockerd.log"
        self._dockerd = self._start_dockerd()

    @property
    def environment(self) -> dict[str, str]:
        """For docker's commands. Debian's docker has BuildKit built in; others on the PATH may lack its plugin."""
        own = {
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_BUILDKIT": "1",
            "DOCKER_CONFIG": "/nonexistent",
        }
        own |= {"COMPOSE_DOCKER_CLI_BUILD": "1", "COMPOSE_HTTP_TIMEOUT": "120"}
        return {**os.environ, **own, "PATH": f"/usr/bin:{os.environ['PATH']}"}

    def docker(self, *arguments: str) -> str:
        """What the command prints.

        Raises:
            RuntimeError: it fails; with what it printed.
        """
        return run(["docker", *arguments], self.environment)

    def popen(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Runs something on this host, such as a server."""
        return subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.name}", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def close(self) -> list[str]:
        """Stops dockerd and removes everything. Returns what is left of it all the same, in words."""
        self._dockerd.send_signal(signal.SIGTERM)
        try:
            self._dockerd.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._dockerd.kill()
            self._dockerd.wait()
        left = [f"process {pid}: {command}" for pid, command in _processes_of(self.folder)]
        left += [
            f"mount {line.split()[1]}"
            for line in Path("/proc/mounts").read_text().splitlines()
            if str(self.folder) in line
        ]
        _ip("netns", "del", self.name)
        for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
            group = hierarchy / self.name
            if group.is_dir():
                for inner in [*sorted(group.rglob("*/"), reverse=True), group]:
                    inner.rmdir()  # fails while a process is in it
        shutil.rmtree(self.folder)
        return left

    def _start_dockerd(self) -> "subprocess.Popen[bytes]":
        command = ["setpriv", "--pdeathsig", "TERM"]  # should pytest be killed
        command += ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount"]
        command += ["dockerd", "--host", f"unix://{self.folder}/docker.sock", "--pidfile", str(self.folder / "pid")]
        command += ["--data-root", str(self._root), "--exec-root", str(self.folder / "exec"), "--bridge", "none"]
        command += ["--cgroup-parent", self._cgroup]
        with self._log.open("wb") as log:
            dockerd = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                self.docker("info", "--format", "{{.Driver}}")
            except RuntimeError as error:
                if dockerd.poll() is not None or time.monotonic() > deadline_s:
                    dockerd.kill()
                    dockerd.wait()
                    tail = self._log.read_text()[-2000:]
                    raise RuntimeError(f"dockerd does not start ({error}); its log ends with:\n{tail}") from error
                time.sleep(0.2)
            else:
                return dockerd


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 600.0) -> str:
    """What the command prints.

    Raises:
        RuntimeError: it fails; with what it printed.
    """
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(command)} has failed with {done.returncode}:\n{said}")
    return done.stdout


def _ip(*arguments: str) -> None:
    run(["ip", *arguments], os.environ)


def new_folder() -> Path:
    """For a `Machine`."""
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))


def _remove_stale() -> None:
    """Bridges, namespaces and folders that are named after a process that is no more; dockerd went with it."""
    for place, pattern in ((_NETNS, r"bt(\d+)h\d"), (_LINKS, r"bt(\d+)"), (_TEMPORARY, rf"{_FOLDER}(\d+)-.*")):
        for entry in place.iterdir() if place.is_dir() else ():
            match = re.fullmatch(pattern, entry.name)
            if match is None or Path(f"/proc/{match[1]}").exists():
                continue
            if place == _TEMPORARY:
                shutil.rmtree(entry)
            else:
                _ip(*(("netns", "del") if place == _NETNS else ("link", "del")), entry.name)


def _share_images(source: Path, target: Path) -> None:
    """Layers are never written to, so their files can be the same ones; saving and loading them takes half a minute."""
    target.mkdir()
    shutil.copytree(source / "image", target / "image", ignore=shutil.ignore_patterns("mounts"))
    run(["cp", "-al", str(source / "overlay2"), str(target / "overlay2")], os.environ)


def _processes_of(folder: Path) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder) in command and int(entry.name) != os.getpid():
            found.append((int(entry.name), command))
    return found
