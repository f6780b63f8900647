"""`baton doctor`: whether this machine has what the local stack needs, and what to do where it does not."""

import typer
from rich.console import Console
from rich.table import Table

from baton.cli.checks import ALL_CHECKS, Status

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.MISSING: "red"}


def doctor() -> None:
    """Check Python, torch, CPU kernels, NIXL, redis-server, model, port, shared memory and GPU."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    missing = False
    for check in ALL_CHECKS:
        result = check()
        missing = missing or result.status is Status.MISSING
        table.add_row(f"[{_STYLES[result.status]}]{result.status}[/]", result.name, result.found, result.advice)
    Console().print(table)
    if missing:
        raise typer.Exit(1)
