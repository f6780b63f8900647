"""`baton drain`: has a worker leave in order, and waits until it has."""

import sys
import time
from pathlib import Path
from typing import Annotated

import grpc
import typer

from baton.arguments import BadArgument, parse_address
from baton.cli.client import call_error, connect
from baton.errors import BatonError, ErrorCode, invalid
from baton.local.readiness import read_port
from baton.local.run_folder import read_run_file
from baton.rpc import worker_pb2, worker_pb2_grpc

_CALL_TIMEOUT_S = 5.0
_POLL_S = 0.2


def drain(
    worker: Annotated[str, typer.Argument(help="A worker of the running stack, for example decode-0, or host:port.")],
    timeout_s: Annotated[
        float | None, typer.Option(help="What runs has so long to end; default: the worker's --drain-timeout-s.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the worker has left.")] = True,
) -> None:
    """Have a worker take nothing new, finish or hand on what it runs, and exit."""
    address = _address_of(worker)
    request = worker_pb2.DrainRequest(timeout_s=timeout_s)
    with connect(address) as channel:
        stub = worker_pb2_grpc.WorkerControlStub(channel)
        try:
            answer = stub.Drain(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise _call_error(error, worker, address) from error
        print(f"{worker} drains: {answer.requests_open} requests open", file=sys.stderr)
        while wait and _answers(stub):
            time.sleep(_POLL_S)
    if wait:
        print(f"{worker} has left", file=sys.stderr)


def _answers(stub: worker_pb2_grpc.WorkerControlStub) -> bool:
    """Whether the worker is still there; one that only takes its time is."""
    try:
        stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest(), timeout=_CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def _address_of(worker: str) -> str:
    if ":" in worker:
        try:
            return parse_address(worker)
        except BadArgument as error:
            raise invalid(f"worker: {error}") from error
    running = read_run_file()
    if running is None:
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"got worker {worker!r}, but no stack runs on this machine; give its address as host:port",
        )
    port_files = {file.stem: file for file in Path(running.run_folder).glob("*.port") if file.stem != "gateway"}
    port = read_port(port_files[worker]) if worker in port_files else None
    if port is None:
        known = ", ".join(sorted(port_files))
        raise BatonError(
            ErrorCode.NOT_FOUND, f"got worker {worker!r}, expected one of the running stack's ({known}) or host:port"
        )
    return f"127.0.0.1:{port}"


def _call_error(error: grpc.RpcError, worker: str, address: str) -> BatonError:
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        message = f"worker {worker} does not answer at {address}; it has left already, or never ran there"
        return BatonError(ErrorCode.UNAVAILABLE, message)
    return call_error(error, address)
