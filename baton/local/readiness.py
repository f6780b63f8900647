"""Waiting until a child process serves, and noticing at once when it dies instead."""

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.channel import open_blocking_channel
from baton.local.child import Child
from baton.tls import Tls

_POLL_S = 0.05
_CALL_TIMEOUT_S = 2.0


def wait_for_redis(child: Child, port: int, deadline_monotonic_s: float) -> None:
    """Returns once Redis answers PING.

    Raises:
        BatonError: INTERNAL when the process ends, DEADLINE_EXCEEDED when it does not answer in time.
    """

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.exceptions.RedisError:
            return False

    with redis.Redis(host="127.0.0.1", port=port, socket_timeout=_CALL_TIMEOUT_S) as client:
        _wait(child, answers, "PING", deadline_monotonic_s, child.check_running)


def wait_for_page(child: Child, url: str, deadline_monotonic_s: float) -> None:
    """Returns once a page answers with 200.

    Raises:
        BatonError: INTERNAL when the process ends, DEADLINE_EXCEEDED when it does not answer in time.
    """

    def answers() -> bool:
        try:
            with opener.open(url, timeout=_CALL_TIMEOUT_S) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    _wait(child, answers, url, deadline_monotonic_s, child.check_running)


def wait_for_service(
    child: Child,
    port_file: Path,
    host: str,
    deadline_monotonic_s: float,
    check_running: Callable[[], None],
    tls: Tls | None = None,
) -> str:
    """Returns the service's host:port once its port file is there and its gRPC health is SERVING.

    `check_running` is called in between; it raises when a process that matters has ended.

    Raises:
        BatonError: INTERNAL when the process ends, DEADLINE_EXCEEDED when it is not ready in time.
    """
    written = f"the port file {port_file}"
    _wait(child, lambda: read_port(port_file) is not None, written, deadline_monotonic_s, check_running)
    address = f"{reachable_host(host)}:{read_port(port_file)}"
    with open_blocking_channel(address, tls, [("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def serving() -> bool:
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_CALL_TIMEOUT_S)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        _wait(child, serving, f"gRPC health SERVING at {address}", deadline_monotonic_s, check_running)
    return address


def reachable_host(host: str) -> str:
    """Where to connect to a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}.get(host, host)


def read_port(port_file: Path) -> int | None:
    """The port in a port file; None while it is not there or not written yet."""
    text = port_file.read_text().strip() if port_file.is_file() else ""
    return int(text) if text.isdigit() else None


def _wait(
    child: Child, ready: Callable[[], bool], what: str, deadline_monotonic_s: float, check_running: Callable[[], None]
) -> None:
    while not ready():
        check_running()
        if time.monotonic() >= deadline_monotonic_s:
            raise BatonError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"{child.name} did not reach {what} in time (--start-timeout-s); {child.log_tail()}",
            )
        time.sleep(_POLL_S)
