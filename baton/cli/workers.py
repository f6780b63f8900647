"""`baton workers`: what a gateway knows of its workers, as a table; and what can be told to them through it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.cli.checked import check_address
from baton.cli.client import call_error, connect
from baton.cli.generate import DEFAULT_GATEWAY
from baton.cli.with_key import with_key
from baton.local.run_folder import read_run_file
from baton.rpc import admin_pb2, admin_pb2_grpc, worker_pb2

_TIMEOUT_S = 10.0

workers = typer.Typer(
    name="workers",
    help="Workers of a gateway, and its logs; needs an admin key where there are keys.",
    rich_markup_mode=None,
)

_Gateway = Annotated[str | None, typer.Option(help=f"host:port; default: the running stack's, else {DEFAULT_GATEWAY}.")]


@workers.callback(invoke_without_command=True)
def show(context: typer.Context, gateway: _Gateway = None) -> None:
    """Show all workers with their state and load."""
    if context.invoked_subcommand is not None:
        return
    with _admin(gateway) as stub:
        answer = stub.ListWorkers(admin_pb2.ListWorkersRequest(), timeout=_TIMEOUT_S)
    table = Table("worker", "role", "state", "address", "requests", "running", "waiting", "blocks free", "of")
    for entry in answer.workers:
        stats = entry.stats
        told = [
            stats.requests_running,
            stats.requests_waiting,
            stats.blocks_free + stats.blocks_cached,
            stats.blocks_total,
        ]
        load = [str(value) if entry.HasField("stats") else "?" for value in told]
        role = worker_pb2.WorkerRole.Name(entry.role).removeprefix("WORKER_ROLE_").lower()
        state = admin_pb2.WorkerState.Name(entry.state).removeprefix("WORKER_STATE_").lower()
        table.add_row(entry.worker.name, role, state, entry.address, str(entry.requests), *load)
    console = Console()
    console.print(table)
    console.print(
        f"{answer.answers_running} answers under way, at most {answer.answers_limit}; "
        f"{answer.requests_queued} requests wait"
    )


@workers.command("drain")
def drain(
    worker: Annotated[str, typer.Argument(help="Its name.")],
    gateway: _Gateway = None,
    timeout_s: Annotated[float | None, typer.Option(help="For what runs; default: the worker's.")] = None,
) -> None:
    """Have a worker take nothing new, finish or hand on what it runs, and exit; does not wait for it."""
    with _admin(gateway) as stub:
        request = admin_pb2.AdminDrainRequest(worker=worker, timeout_s=timeout_s)
        answer = stub.Drain(request, timeout=_TIMEOUT_S)
    print(f"{worker} drains: {answer.requests_open} requests open")


@workers.command("flush")
def flush(
    names: Annotated[list[str] | None, typer.Argument(help="Names; default: all.")] = None, gateway: _Gateway = None
) -> None:
    """Drop prefix caches; running requests keep their blocks."""
    with _admin(gateway) as stub:
        answer = stub.FlushCache(admin_pb2.FlushCacheRequest(workers=names or []), timeout=_TIMEOUT_S)
    for name, blocks in sorted(answer.blocks.items()):
        print(f"{name}: {blocks} blocks dropped")
    for name, problem in sorted(answer.failed.items()):
        print(f"{name}: {problem}")
    if answer.failed:
        raise typer.Exit(1)


@workers.command("log-level")
def log_level(
    level: Annotated[str, typer.Argument(help="debug, info, warning or error.")],
    logger: Annotated[str, typer.Option(help="A module, as logs name it; default: all.")] = "",
    gateway: _Gateway = None,
) -> None:
    """Set what the gateway process logs, until it ends."""
    with _admin(gateway) as stub:
        answer = stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level=level, logger=logger), timeout=_TIMEOUT_S)
    print(f"{level}, was {answer.before}")


@contextmanager
def _admin(gateway: str | None) -> Iterator[admin_pb2_grpc.AdminStub]:
    if gateway is not None:
        check_address("--gateway", gateway)
    running = read_run_file()
    address = gateway or (running.gateway_address if running else DEFAULT_GATEWAY)
    with connect(address) as channel:
        try:
            yield admin_pb2_grpc.AdminStub(with_key(channel))
        except grpc.RpcError as error:
            raise call_error(error, address) from error
