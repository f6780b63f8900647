"""What images are built of where no image can be pulled: a base made from Debian's packages, and wheels by this pip.

Both are kept under build/compose, for the next run. Whatever pip is configured to use here is used: the build itself
sees the wheels alone.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compose.machine import Machine, run

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "compose"
BASE_IMAGE = "baton-test-base:1"
_PACKAGES = ("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "libgomp1", "redis-server")
_WHEELS_PORT = 8765


def debian_base() -> Path:
    """A tar of a small Debian of this machine's release, with Python, a compiler and redis-server."""
    tar = CACHE / "base.tar"
    if tar.is_file():
        return tar
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    folder = CACHE / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    include = f"--include={','.join(_PACKAGES)}"
    suite = release["VERSION_CODENAME"].strip('"')
    run(["debootstrap", "--variant=minbase", include, suite, str(folder)], os.environ)
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(folder / leftover)
    partial = tar.with_suffix(".partial")
    run(["tar", "-C", str(folder), "-cf", str(partial), "."], os.environ)
    partial.replace(tar)
    shutil.rmtree(folder)
    return tar


def wheels() -> Path:
    """A folder with all that constraints.txt names, and torch is in it."""
    folder = CACHE / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    run([*command, "--requirement", str(ROOT / "compose" / "constraints.txt")], os.environ)
    return folder


def build_images(machine: Machine, project_environment: dict[str, str]) -> None:
    """The base, then the images of docker-compose.cpu.yml, from its own build sections."""
    with ThreadPoolExecutor() as threads:
        downloading = threads.submit(wheels)
        machine.docker("import", str(debian_base()), BASE_IMAGE)
    server = machine.popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "-d", str(downloading.result()), str(_WHEELS_PORT)]
    )
    try:
        compose = ["docker-compose", "-p", "build", "-f", str(ROOT / "compose" / "docker-compose.cpu.yml")]
        run([*compose, "build", "--parallel", "gateway", "prefill"], project_environment)
    finally:
        server.terminate()
        server.wait()


def build_arguments() -> dict[str, str]:
    """The environment that makes docker-compose.cpu.yml build from these ingredients."""
    return {
        "BATON_BASE_IMAGE": BASE_IMAGE,
        "BATON_BUILD_IMAGE": BASE_IMAGE,
        "BATON_REDIS_IMAGE": BASE_IMAGE,
        "BATON_BUILD_NETWORK": "host",
        "BATON_TORCH_INDEX": "",
        "BATON_PIP_NO_INDEX": "1",
        "BATON_PIP_FIND_LINKS": f"http://127.0.0.1:{_WHEELS_PORT}/",
    }
