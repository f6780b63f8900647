"""Asks a gRPC server whether it serves, for containers' health checks: `python -m baton.grpc_util.probe HOST:PORT`.

With TLS as BATON_TLS_DIR says.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.arguments import parse_address
from baton.grpc_util.channel import open_blocking_channel
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.tls import Tls

_TIMEOUT_S = 3.0


def probe(address: str, service: str = "", timeout_s: float = _TIMEOUT_S) -> str:
    """Its health in one word, SERVING when all is well; otherwise the status of the failed call."""
    with open_blocking_channel(address, Tls.from_environment(), CHANNEL_OPTIONS) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when it serves. A worker that drains does not."""
    parser = argparse.ArgumentParser(prog="python -m baton.grpc_util.probe", description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("address", nargs="?", type=parse_address, help="HOST:PORT of a gateway or worker")
    asked.add_argument("--port-file", type=Path, help="instead: where a service of this host has written its port")
    parser.add_argument("--service", default="", help="one of its services by full name; default: the whole server")
    parser.add_argument("--timeout-s", type=float, default=_TIMEOUT_S, help="for the answer (%(default)g)")
    options = parser.parse_args(arguments)
    try:
        address = options.address or f"127.0.0.1:{options.port_file.read_text()}"
    except OSError as error:
        print(f"{error}; it is there once the service serves")
        return 1
    health = probe(address, options.service, options.timeout_s)
    print(health)
    return 0 if health == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
