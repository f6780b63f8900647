"""A compose project on a host of the tests: docker-compose with the project's files, and its containers."""

import json
import os
import signal
import time
from typing import Any

from tests.compose.ingredients import ROOT
from tests.compose.machine import Machine, run

HEALTHY_S = 90.0


class Project:
    """Some of the files under compose/, under a project's name."""

    def __init__(self, machine: Machine, name: str, files: tuple[str, ...], environment: dict[str, str]) -> None:
        self.machine = machine
        self.environment = {**machine.environment, **environment}
        self._command = ["docker-compose", "-p", name]
        for file in files:
            self._command += ["-f", str(ROOT / "compose" / file)]

    @property
    def gateway_address(self) -> str:
        """For gRPC, as it is published."""
        return f"{self.machine.address}:8080"

    def compose(self, *arguments: str) -> str:
        """What `docker-compose …` prints.

        Raises:
            RuntimeError: it fails.
        """
        return run([*self._command, *arguments], self.environment)

    def up(self, *services: str, **scale: int) -> None:
        """Starts them and waits until they are healthy."""
        flags = [flag for service, count in scale.items() for flag in ("--scale", f"{service}={count}")]
        self.compose("up", "-d", "--no-build", *flags, *services)
        self.wait_healthy(*services)

    def wait_healthy(self, *services: str) -> None:
        """Raises RuntimeError with the logs when they are not in time."""
        deadline_s = time.monotonic() + HEALTHY_S
        while waiting := [c for s in services for c in self.containers(s) if self.health(c) not in ("healthy", "none")]:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not healthy: {waiting}\n{self.compose('logs', '--tail=40')}")
            time.sleep(0.3)

    def down(self) -> None:
        """Containers, networks and volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")

    def containers(self, service: str) -> list[str]:
        """Ids."""
        return self.compose("ps", "-q", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """As `docker inspect` has it."""
        (found,) = json.loads(self.machine.docker("inspect", container))
        return dict(found)

    def health(self, container: str) -> str:
        """healthy, starting, unhealthy, or none where nothing checks it; a container that is down is starting."""
        state = self.inspect(container)["State"]
        if not state["Running"]:
            return "starting"
        return str(state.get("Health", {}).get("Status", "none"))

    def crash(self, container: str) -> None:
        """Kills its first process from outside. Docker restarts it then, but not after `docker kill`."""
        os.kill(self.inspect(container)["State"]["Pid"], signal.SIGKILL)

    def registered(self, role: str) -> set[str]:
        """Names of the workers in Redis that are of a role."""
        (container,) = self.containers("redis")
        keys = self.machine.docker("exec", container, "redis-cli", "--raw", "keys", "baton:*:worker:*").split()
        return {name for key in keys if (name := key.rpartition(":")[2]).startswith(role)}
