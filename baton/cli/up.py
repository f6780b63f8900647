"""`baton up`: the local stack in the foreground until it is told to stop."""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from baton.cli.fetch_command import fetch_with_bars
from baton.cli.signals import Stopped, stop_signals_raise
from baton.cli.stack_flags import with_stack_flags
from baton.config import StackOptions, resolve
from baton.load_options import is_gguf
from baton.local import LocalStack
from baton.local.run_folder import RunFile, remove_run_file, write_run_file

_CHECK_S = 0.5


@with_stack_flags
def up(flags: dict[str, Any]) -> None:
    """Start Redis, gateway and workers on this machine and keep them running until Ctrl-C."""
    options, _ = resolve(flags)
    console = Console()
    if is_gguf(options.model):
        fetch_with_bars(options.model)
    with stop_signals_raise():
        try:
            _run_until_stopped(options, console)
        except (KeyboardInterrupt, Stopped):
            console.print("Stopped.")


@contextlib.contextmanager
def running_stack(options: StackOptions, console: Console) -> Iterator[LocalStack]:
    """A started stack; while it starts, a line on the terminal says what is being waited for.

    Raises:
        BatonError: as `LocalStack.start`.
    """
    with contextlib.ExitStack() as exits:
        with console.status("Starting") as status:
            stack = exits.enter_context(LocalStack(options, on_progress=status.update))
        yield stack


def _run_until_stopped(options: StackOptions, console: Console) -> None:
    """Ends only by an exception: a signal's, or a BatonError when a process of the stack ends."""
    with running_stack(options, console) as stack:
        console.print(addresses(stack), highlight=False, markup=False, soft_wrap=True)
        write_run_file(RunFile(os.getpid(), stack.gateway_address, stack.otlp_address, str(stack.run_folder)))
        try:
            while True:
                stack.check_running()
                time.sleep(_CHECK_S)
        finally:
            remove_run_file(stack.run_folder)
            console.print("Stopping.")


def addresses(stack: LocalStack) -> str:
    """What runs where, and calls to try."""
    rows = {"gateway (gRPC)": stack.gateway_address, "gateway (HTTP)": stack.http_url, **stack.worker_addresses}
    rows |= {f"metrics of {name}": url for name, url in stack.metrics_urls.items()}
    rows |= {"redis": stack.redis_url, "traces (OTLP)": stack.otlp_address, "logs": str(stack.run_folder)}
    if stack.ui_url:
        rows["traces (page)"] = stack.ui_url
    width = max(len(name) for name in rows)
    lines = [f"{name:{width}}  {address}" for name, address in rows.items()]
    lines += ["", "Try it from another terminal:", '  baton generate "What is a KV cache?"']
    call = f"grpcurl -plaintext -d '{_EXAMPLE}' {stack.gateway_address} baton.v1.Inference/Generate"
    curl = f"curl {stack.http_url}/v1/chat/completions -d '{_HTTP_EXAMPLE}'"
    return "\n".join([*lines, f"  {curl}", f"  {call}", "Ctrl-C stops everything."])


_HTTP_EXAMPLE = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}'
_EXAMPLE = '{"chat": {"messages": [{"role": "user", "content": "Hello"}]}, "sampling": {"max_tokens": 32}}'
