"""`baton collector`: the local stack's store of traces as a service of its own, for stacks of containers."""

import threading
from typing import Annotated

import typer

from baton.cli.checked import check_address
from baton.cli.signals import Stopped, stop_signals_raise
from baton.errors import invalid
from baton.telemetry.collector import Collector

OTLP_PORT = 4317


def collector(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="For OTLP over gRPC and for whoever asks for a trace.")] = OTLP_PORT,
    forward_to: Annotated[
        str | None, typer.Option(help="host:port of an OTLP receiver that gets all spans too.")
    ] = None,
) -> None:
    """Keep the newest traces in memory for `baton generate` and the gateway's page, and pass all spans on."""
    if not 0 <= port <= 65535:
        raise invalid(f"got --port {port}, expected 0 to 65535")
    if forward_to:  # empty: none, since that is how a compose file leaves it out
        check_address("--forward-to", forward_to)
    with stop_signals_raise():
        running = Collector(host, port, forward_to or None)
        print(f"collector at {running.address}", flush=True)
        try:
            threading.Event().wait()
        except (KeyboardInterrupt, Stopped):
            running.close()
