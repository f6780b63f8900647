"""Several gateway processes on one port: connections go to both, all end together, no stranger has a part."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from baton.rpc import inference_pb2, inference_pb2_grpc
from tests.fakes.gateway_stack import eventually
from tests.fakes.text_model import write_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def gateway(model: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    files = ["--port-file", str(tmp_path / "port"), "--http-port-file", str(tmp_path / "http")]
    files += ["--metrics-port-file", str(tmp_path / "metrics")]
    command = [sys.executable, "-m", "gateway", "--model", str(model), "--gateway-processes", "2"]
    command += [
        "--port",
        "0",
        "--http-port",
        "0",
        "--metrics-port",
        "0",
        "--redis-url",
        "redis://127.0.0.1:1/0",
        *files,
    ]
    process = subprocess.Popen(command)
    yield process
    process.kill()
    process.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def requests_of(port: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        shown = answer.read().decode()
    return sum(map(float, re.findall(r"^baton_gateway_requests_total\{.*\} (.*)$", shown, re.MULTILINE)))


async def test_connections_are_dealt_out(gateway: subprocess.Popen[bytes], tmp_path: Path) -> None:
    await eventually((tmp_path / "port").exists, 60)
    port = (tmp_path / "port").read_text()
    metrics = [(tmp_path / name).read_text() for name in ("metrics", "metrics.1")]
    for _ in range(24):
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):  # there is no worker
                await stub.Generate(inference_pb2.GenerateRequest(text="a"), timeout=30).read()
    counts = [await asyncio.to_thread(requests_of, one) for one in metrics]
    assert sum(counts) == 24
    assert min(counts) > 0
    http = (tmp_path / "http").read_text()
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{http}/health") as answer:
        assert answer.status == 200
    gateway.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait, 30) == 0


async def test_they_end_together(gateway: subprocess.Popen[bytes], tmp_path: Path) -> None:
    await eventually((tmp_path / "port").exists, 60)
    one, other = children_of(gateway.pid)
    os.kill(one, signal.SIGKILL)
    assert await asyncio.to_thread(gateway.wait, 30) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


async def test_they_die_with_their_parent(gateway: subprocess.Popen[bytes], tmp_path: Path) -> None:
    await eventually((tmp_path / "port").exists, 60)
    children = children_of(gateway.pid)
    gateway.kill()
    deadline_s = time.monotonic() + 10
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_port_of_another_program_is_not_shared(model: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "gateway", "--model", str(model), "--gateway-processes", "2"]
        ended = subprocess.run([*command, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "choose another --port" in ended.stderr
