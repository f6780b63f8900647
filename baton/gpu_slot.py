"""Gives each worker of a machine a GPU of its own: `python -m baton.gpu_slot -- baton decode …` adds `--device cuda:N`.

`--scale decode=4` starts four equal containers, and nothing in them says which of the four they are. So all see all
GPUs (CUDA's IPC between two of them needs that anyway), and each takes the first one whose lock file nobody holds.
"""

import argparse
import fcntl
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from baton.errors import BatonError, ErrorCode, invalid

_DEVICE_NODE = re.compile(r"nvidia(\d+)")


def num_gpus(devices: Path = Path("/dev")) -> int:
    """GPUs of this machine or container, by their device nodes: no driver library is asked."""
    return sum(1 for node in devices.iterdir() if _DEVICE_NODE.fullmatch(node.name))


def take_slot(folder: Path, gpus: int, workers_per_gpu: int) -> tuple[int, int]:
    """The number of a GPU, and a file descriptor that holds it: until it is closed, by the process's end at the latest.

    Every GPU gets a first worker before any gets a second one.

    Raises:
        BatonError: RESOURCE_EXHAUSTED when all are taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for gpu, file in _slots(folder, gpus, workers_per_gpu):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return gpu, descriptor
    raise BatonError(
        ErrorCode.RESOURCE_EXHAUSTED,
        f"got {gpus} GPUs with {workers_per_gpu} worker(s) on each, expected one that is free; start fewer workers, or "
        "put more on each with --workers-per-gpu and a smaller --gpu-memory-utilization",
    )


def _slots(folder: Path, gpus: int, workers_per_gpu: int) -> Iterator[tuple[int, Path]]:
    for layer in range(workers_per_gpu):
        for gpu in range(gpus):
            yield gpu, folder / f"gpu-{gpu}-{layer}.lock"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Becomes the worker, which keeps the lock for as long as it lives; exits with 1 when there is no GPU to take."""
    parser = argparse.ArgumentParser(prog="python -m baton.gpu_slot", description=__doc__)
    parser.add_argument("--locks", type=Path, default=Path("/run/baton-gpus"), help="a folder that all workers share")
    parser.add_argument("--workers-per-gpu", type=int, default=1, help="(%(default)s)")
    parser.add_argument("command", nargs="+", help="what to run, behind --")
    options = parser.parse_args(arguments)
    try:
        if options.workers_per_gpu < 1:
            raise invalid(f"got --workers-per-gpu {options.workers_per_gpu}, expected at least 1")
        if not (gpus := num_gpus()):
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                "no GPU is visible; give the container one, or use docker-compose.cpu.yml",
            )
        gpu, descriptor = take_slot(options.locks, gpus, options.workers_per_gpu)
    except BatonError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(1)
    os.set_inheritable(descriptor, True)  # by the worker only: what it starts itself inherits nothing
    sys.stdout.flush()
    os.execvp(options.command[0], [*options.command, "--device", f"cuda:{gpu}"])


if __name__ == "__main__":
    main()
