"""The commands in one Typer application, and errors as one line instead of a traceback."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from baton.cli import (
    collector,
    config_command,
    demo,
    doctor,
    drain,
    fetch_command,
    generate,
    passthrough,
    trace_command,
    up,
)
from baton.cli.bench.app import bench
from baton.cli.key import key
from baton.cli.top.command import top
from baton.cli.workers import workers
from baton.errors import BatonError

app = typer.Typer(
    name="baton",
    help="LLM inference with prefill and decode apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's table of options cuts long names off in a narrow terminal; plain text wraps
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("up")(up.up)
app.command("generate")(generate.generate)
app.command("trace")(trace_command.trace)
app.command("top")(top)
app.command("drain")(drain.drain)
app.command("collector")(collector.collector)
app.command("fetch")(fetch_command.fetch)
app.command("config")(config_command.config)
app.command("doctor")(doctor.doctor)
app.add_typer(bench)
app.add_typer(key)
app.add_typer(workers)
passthrough.add_commands(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 when all went well, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        app(args=arguments)
    except BatonError as error:
        fail(error.message)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        fail(str(error))
    sys.exit(0)


def fail(message: str) -> NoReturn:
    """Prints the reason to stderr and exits with 1."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)
