"""`baton gateway`, `prefill`, `decode` and `simulate`: packages above this one, with all arguments passed on."""

import os
import sys

import typer

MODULES = {"gateway": "gateway", "prefill": "prefill_service", "decode": "decode_service", "simulate": "simulator"}
_HELP = {
    "gateway": "Run the gateway; `baton gateway --help` lists its flags.",
    "prefill": "Run one prefill worker; `baton prefill --help` lists its flags.",
    "decode": "Run one decode worker; `baton decode --help` lists its flags.",
    "simulate": "Simulate a cluster; `baton simulate --help` lists its commands.",
}
# Everything after the command's name goes to the service, --help included.
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    for name in MODULES:
        app.command(name, help=_HELP[name], context_settings=_SETTINGS)(_run_service)


def _run_service(context: typer.Context) -> None:
    replace_process(MODULES[context.info_name or ""], context.args)


def replace_process(module: str, arguments: list[str]) -> None:
    """Becomes `python -m module`: the same process, so that signals and the exit code are the service's own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])
