"""The compose files and the Dockerfile: what docker would do with them, as far as that can be read."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from baton.worker.options import parse_options
from compose.requirements import requirements
from gateway.__main__ import parse_args
from tests.fakes.compose_files import FOLDER, seconds, services

ROOT = FOLDER.parent
FILES = ("docker-compose.yml", "docker-compose.cpu.yml")
SHARED = {"BATON_REDIS_URL": "redis://10.0.0.1:6379/0", "BATON_OTLP_ENDPOINT": "10.0.0.1:4317"}
WORKERS = [(file, role) for file in (*FILES, "docker-compose.hosts.yml") for role in ("prefill", "decode")]
STOP_S = 3.0  # what a worker takes after its drain timeout, to move what is left
each_file = pytest.mark.parametrize("file", FILES)


def command_of(service: dict[str, Any], folder: Path) -> list[str]:
    words = shlex.split(service["command"])
    words[words.index("--model") + 1] = str(folder)
    if "--advertise-address" in words:
        words[words.index("--advertise-address") + 1] = "worker:9000"  # there is no Redis here
    return words


@pytest.mark.parametrize(("file", "role"), WORKERS)
def test_a_workers_flags_are_real_and_it_has_time_to_drain(file: str, role: str, tmp_path: Path) -> None:
    service = services(file, **SHARED)[role]
    name, *flags = command_of(service, tmp_path)
    options = parse_options(name, flags)
    assert name == role
    if "stop_grace_period" in service:
        assert seconds(service["stop_grace_period"]) >= options.drain_timeout_s + STOP_S
    else:  # laid over the others
        assert (
            options.drain_timeout_s
            == parse_options(name, command_of(services(FILES[0])[role], tmp_path)[1:]).drain_timeout_s
        )


@each_file
def test_the_gateways_flags_are_real(file: str, tmp_path: Path) -> None:
    name, *flags = command_of(services(file)["gateway"], tmp_path)
    config = parse_args(flags)
    assert name == "gateway"
    published = {port.rsplit(":", 1)[1] for port in services(file)["gateway"]["ports"]}
    assert published == {str(config.port), str(config.http_port)}


@each_file
def test_workers_can_be_scaled_and_everything_comes_back(file: str) -> None:
    for name, service in services(file).items():
        assert "container_name" not in service
        assert ("ports" in service) == (name in ("gateway", "jaeger", "prometheus", "grafana"))
        assert name == "fetch" or service["restart"] == "unless-stopped"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@each_file
def test_images_of_others_are_of_a_named_release(file: str) -> None:
    for service in services(file).values():
        image, _, tag = service["image"].partition(":")
        assert image.startswith("baton-") or re.search(r"\d+\.\d+", tag), service["image"]


@each_file
def test_what_is_mounted_exists(file: str) -> None:
    declared = yaml.safe_load((FOLDER / file).read_text())["volumes"]
    for service in services(file).values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (FOLDER / source).exists() if source.startswith(".") else source in declared


def test_gpu_workers_share_the_namespaces_that_cuda_ipc_needs() -> None:
    found = services(FILES[0])
    for role in ("prefill", "decode"):
        assert found[role]["ipc"] == found[role]["pid"] == "service:namespaces"
        (device,) = found[role]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
    assert found["namespaces"]["ipc"] == "shareable"
    assert all("deploy" not in service for service in services(FILES[1]).values())


def test_both_files_have_the_same_services_but_for_the_namespaces() -> None:
    assert services(FILES[0]).keys() - services(FILES[1]).keys() == {"namespaces"}


def test_prometheus_scrapes_the_services_at_their_ports(tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    (names,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert set(names["names"]) == {"gateway", "prefill", "decode"}
    for name in names["names"]:
        assert f"--metrics-port {names['port']}" in services(FILES[1])[name]["command"]
    assert all((FOLDER / "prometheus" / file).is_file() for file in config["rule_files"])


def test_spans_go_from_the_collector_to_jaeger() -> None:
    config = yaml.safe_load((FOLDER / "otel" / "collector.yml").read_text())
    pipeline = config["service"]["pipelines"]["traces"]
    assert set(pipeline["processors"]) <= set(config["processors"])
    found = services(FILES[0])
    assert [config["exporters"][name]["endpoint"].split(":")[0] for name in pipeline["exporters"]] == ["jaeger"]
    assert found["jaeger"]["profiles"] == found["otel-collector"]["profiles"] == ["observability"]
    assert "--forward-to=otel-collector:4317" in found["collector"]["command"]


def pins() -> Iterator[tuple[str, Version]]:
    for line in (FOLDER / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            yield name, Version(version)


def test_every_requirement_is_pinned_to_a_release_that_it_allows() -> None:
    pinned = dict(pins())
    for line in requirements((ROOT / "pyproject.toml").read_text(), ["worker"]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(pinned[wanted.name.lower().replace("_", "-")]), line


def test_what_is_built_has_every_package() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{package.removesuffix('*')}" for package in found} <= set(ignored)


def test_every_image_runs_as_nobody_in_particular() -> None:
    stages = re.split(r"^FROM ", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    finals = [stage for stage in stages if stage.startswith("runtime AS")]
    assert len(finals) == 3
    assert all("\nUSER 10001:10001\n" in stage for stage in finals)
