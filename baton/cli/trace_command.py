"""`baton trace`: one request's waterfall, and where the time to its first token went."""

import re
from collections.abc import Sequence
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.cli.checked import check_address
from baton.cli.trace_view import fetch_trace
from baton.errors import BatonError, ErrorCode, invalid
from baton.local.run_folder import read_run_file
from baton.telemetry.tree import TraceSpan, render_tree

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_TTFT, _PART = "baton.ttft_us", re.compile(r"baton\.ttft\.(\w+)_us")
_BAR_COLUMNS = 30


def trace(
    trace_id: Annotated[str, typer.Argument(help="32 hex digits, as answers and logs name it.")],
    traces: Annotated[
        str | None, typer.Option(help="host:port of a trace store; default: the running stack's.")
    ] = None,
) -> None:
    """Show a request's spans in their place in time, and the parts of its time to the first token."""
    if not _TRACE_ID.fullmatch(trace_id):
        raise invalid(f"got trace id {trace_id[:64]!r}, expected 32 hex digits in lower case")
    if traces is not None:
        check_address("--traces", traces)
    running = read_run_file()
    address = traces or (running.traces_address if running else None)
    if address is None:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, "no stack runs here; start one with `baton up`, or name a store by --traces"
        )
    try:
        spans = fetch_trace(address, trace_id, {"gateway.request"})
    except grpc.RpcError as error:
        raise BatonError(
            ErrorCode.UNAVAILABLE, f"no trace store at {address}: {error.code().name}; see --traces"
        ) from error
    if not spans:
        raise BatonError(
            ErrorCode.NOT_FOUND,
            f"{address} does not know trace {trace_id}; it keeps the newest ones, and spans come within a second",
        )
    console = Console()
    console.print(render_tree(spans))
    if table := ttft_table(spans):
        console.print()
        console.print(table)


def ttft_table(spans: Sequence[TraceSpan]) -> Table | None:
    """The parts of the time to the first token; None without a first token."""
    root = next((span for span in spans if span.name == "gateway.request" and _TTFT in span.attributes), None)
    if root is None:
        return None
    whole_us = float(root.attributes[_TTFT])
    table = Table(title=f"Time to the first token: {whole_us / 1e3:.2f} ms", title_justify="left", box=None)
    table.add_column("part", style="cyan")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for name, value in root.attributes.items():
        if found := _PART.fullmatch(name):
            share = float(value) / whole_us if whole_us else 0.0
            bar = "█" * round(share * _BAR_COLUMNS)
            table.add_row(found[1], f"{float(value) / 1e3:.2f}", f"{share:.1%}", bar)
    return table
