"""What docker-compose itself makes of the files that no test here can start: they want GPUs, or images to be pulled."""

import os

import pytest
import yaml

from tests.compose.ingredients import ROOT
from tests.compose.machine import run

HOSTS = {"BATON_BIND": "10.0.0.1", "BATON_REDIS_URL": "redis://10.0.0.1:6379/0", "BATON_OTLP_ENDPOINT": "10.0.0.1:4317"}


def config(*files: str, **environment: str) -> dict[str, dict[str, object]]:
    """The services as docker-compose has merged them."""
    named = [word for file in files for word in ("-f", str(ROOT / "compose" / file))]
    command = ["docker-compose", "-p", "x", *named, "--profile", "observability", "--profile", "fetch", "config"]
    merged: dict[str, dict[str, object]] = yaml.safe_load(run(command, os.environ | environment))["services"]
    return merged


def kept(service: dict[str, object]) -> dict[str, object]:
    """What the file for hosts leaves as it is; docker-compose reorders lists."""
    rest = {key: value for key, value in service.items() if key not in ("network_mode", "command", "healthcheck")}
    return {key: sorted(value) if key == "volumes" else value for key, value in rest.items()}  # type: ignore[call-overload]


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-compose.cpu.yml"])
def test_a_file_is_accepted_alone_and_with_hosts_laid_over_it(file: str) -> None:
    alone, hosts = config(file), config(file, "docker-compose.hosts.yml", **HOSTS)
    assert alone.keys() == hosts.keys() >= {"redis", "gateway", "prefill", "decode", "jaeger", "grafana", "fetch"}
    for role in ("prefill", "decode"):
        assert hosts[role]["network_mode"] == "host"
        assert kept(alone[role]) == kept(hosts[role])


def test_hosts_are_told_what_they_lack() -> None:
    with pytest.raises(RuntimeError, match="redis://FIRST_HOST"):
        config("docker-compose.cpu.yml", "docker-compose.hosts.yml", BATON_BIND="10.0.0.1")
