"""The commands that only containers run: the health probe, and the collector as a service."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from baton.grpc_util.probe import main
from tests.integration.test_collector import get, send_trace


@pytest.fixture
def served() -> Iterator[tuple[int, health.HealthServicer]]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, servicer
    server.stop(0).wait()


def test_the_probe_tells_a_server_that_serves(served: tuple[int, health.HealthServicer], tmp_path: Path) -> None:
    port, servicer = served
    assert main([f"127.0.0.1:{port}"]) == 0
    assert main([f"127.0.0.1:{port}", "--service", "no.such.Service"]) == 1
    (tmp_path / "port").write_text(str(port))
    assert main(["--port-file", str(tmp_path / "port")]) == 0
    servicer.set("", HealthCheckResponse.NOT_SERVING)  # as a worker that drains
    assert main([f"127.0.0.1:{port}"]) == 1


def test_the_probe_fails_where_nothing_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:1", "--timeout-s", "0.5"]) == 1
    assert main(["--port-file", str(tmp_path / "port")]) == 1
    assert "once the service serves" in capsys.readouterr().out


def test_the_collector_is_a_service_of_its_own() -> None:
    command = [sys.executable, "-m", "baton.cli", "collector", "--port", "0", "--forward-to="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            assert {span.name for span in get(address, send_trace(address))} >= {"gateway.request"}
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
