"""The containers for real: dockerd, images, a stack. `BATON_NO_DOCKER=1` leaves all of it out."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.fetch.cache import home
from tests.compose.composed import Project
from tests.compose.ingredients import build_arguments, build_images
from tests.compose.machine import Machine, Network, new_folder

collect_ignore_glob = ["test_*"] if os.environ.get("BATON_NO_DOCKER") else []

_TOOLS = ("dockerd", "docker", "docker-compose", "debootstrap", "ip", "iptables", "nsenter")


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        pytest.fail(
            f"containers cannot be tested: missing are {', '.join(missing) or 'root rights'}; as root, "
            "`make docker-engine` installs Debian's packages; BATON_NO_DOCKER=1 leaves these tests out"
        )
    network = Network()
    yield network
    network.close()


@pytest.fixture(scope="session")
def environment(smollm2: Path) -> dict[str, str]:
    """For docker-compose: images from here, the small model from this machine's cache."""
    assert smollm2.is_relative_to(home())
    return build_arguments() | {"BATON_MODELS": str(home()), "BATON_BIND": "0.0.0.0", "BATON_FORWARD_SPANS_TO": ""}


@pytest.fixture(scope="session")
def machine(network: Network, environment: dict[str, str]) -> Iterator[Machine]:
    """A host that has the images."""
    machine = Machine(network, 1, new_folder())
    try:
        build_images(machine, {**machine.environment, **environment})
        yield machine
    finally:
        left = machine.close()
    assert not left


@pytest.fixture(scope="module")
def second_machine(network: Network, machine: Machine) -> Iterator[Machine]:
    """Another host with the same images."""
    second = Machine(network, 2, new_folder(), images_of=machine)
    yield second
    assert not second.close()


@pytest.fixture(scope="module")
def stack(machine: Machine, environment: dict[str, str]) -> Iterator[Project]:
    """One prefill and one decode worker, on the CPU."""
    flags = "--lease-s 6 --longest-write-s 0.5 --clock-margin-s 0.5"
    flags += " --kv-cache-bytes 256MiB --max-model-len 2048 --num-threads 1"
    project = Project(machine, "stack", ("docker-compose.cpu.yml",), environment | {"BATON_WORKER_FLAGS": flags})
    try:
        project.up("redis", "collector", "gateway", "prefill", "decode")
        yield project
    finally:
        project.down()
    assert machine.docker("ps", "-aq") == ""
    assert machine.docker("volume", "ls", "-q") == ""
    assert machine.docker("network", "ls", "--format", "{{.Name}}").split() == ["host", "none"]
