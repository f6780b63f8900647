"""`baton top`: what gateways and workers are doing, live in the terminal."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from baton.cli.signals import Stopped, stop_signals_raise
from baton.cli.top.readings import Reading, Window, read_all
from baton.cli.top.view import tables
from baton.errors import BatonError, ErrorCode, invalid
from baton.local.readiness import read_port
from baton.local.run_folder import read_run_file

_SUFFIX = ".metrics-port"  # as baton/local/commands.py names the files
_WIDTH = 160  # of a snapshot that goes to a file


def top(
    url: Annotated[
        list[str] | None,
        typer.Option(
            "--url", help="A process's metrics, http://HOST:PORT/metrics; again for more. Default: the stack's."
        ),
    ] = None,
    interval_s: Annotated[float, typer.Option(help="Between two looks; rates are over this time.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, and end.")] = False,
) -> None:
    """Show requests, queues, blocks and rates of a running stack."""
    if not 0 < interval_s < float("inf"):
        raise invalid(f"got --interval-s {interval_s}, expected seconds above 0")
    named = {one: one for one in url or ()}
    look = Looks()
    look.at(named or stack_urls())
    console = Console()
    if once:
        time.sleep(interval_s)
        console.width = max(console.width, _WIDTH)
        console.print(tables(look.at(named or stack_urls())))
        return
    with stop_signals_raise(), Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(tables(look.at(named or stack_urls())), refresh=True)
        except (KeyboardInterrupt, Stopped):
            return


class Looks:
    """One look after the other at the same processes, which may come and go."""

    def __init__(self) -> None:
        self._last: dict[str, Reading | str] = {}

    def at(self, urls: Mapping[str, str]) -> dict[str, Window | str]:
        """By name: what has changed since the last look, or why a process tells nothing."""
        last, self._last = self._last, read_all(urls)
        windows: dict[str, Window | str] = {}
        for name, now in self._last.items():
            before = last.get(name)
            windows[name] = (
                now if isinstance(now, str) else Window(before if isinstance(before, Reading) else None, now)
            )
        return windows


def stack_urls() -> dict[str, str]:
    """The metrics of the running stack's services, the gateway first.

    Raises:
        BatonError: NOT_FOUND when no stack runs on this machine.
    """
    running = read_run_file()
    if running is None:
        raise BatonError(
            ErrorCode.NOT_FOUND,
            "no stack runs on this machine; start one with `baton up`, or name processes with --url",
        )
    files = sorted(Path(running.run_folder).glob(f"*{_SUFFIX}"), key=lambda file: (file.stem != "gateway", file.stem))
    host = running.gateway_address.rpartition(":")[0]
    hosts = {"gateway": host}  # workers of a local stack listen on the loopback address
    ports = {file.stem: read_port(file) for file in files}
    return {
        name: f"http://{hosts.get(name, '127.0.0.1')}:{port}/metrics"
        for name, port in ports.items()
        if port is not None
    }
