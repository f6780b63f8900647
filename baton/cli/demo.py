"""`baton demo`: fetch, start, ask, show, stop; one command that proves that everything works."""

import os
from typing import Annotated, Any

import typer
from rich.console import Console

from baton.cli.checked import sampling_params
from baton.cli.fetch_command import fetch_with_bars
from baton.cli.generate import build_request
from baton.cli.show import Display, run_and_show
from baton.cli.signals import stop_signals_raise
from baton.cli.stack_flags import with_stack_flags
from baton.cli.up import running_stack
from baton.config import StackOptions, environment_variable, resolve
from baton.errors import BatonError, ErrorCode
from baton.fetch import SMALL_MODEL
from baton.load_options import is_gguf
from baton.local import LocalStack
from baton.rpc import inference_pb2

_PROMPT = "What is gravity? Answer in two sentences."


@with_stack_flags
def demo(
    flags: dict[str, Any],
    prompt: Annotated[str, typer.Option(help="The user's message.")] = _PROMPT,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 64,
) -> None:
    """Fetch the small model if needed, start a stack on free ports, answer one prompt, show how, stop."""
    sampling = sampling_params(temperature=0.0, max_tokens=max_tokens)  # greedy: the answer is the same every time
    request = build_request(prompt, "", sampling)
    if flags["port"] is None and not os.environ.get(environment_variable("port")):
        flags["port"] = 0
    options, _ = resolve(flags)
    console = Console()
    if options.model == SMALL_MODEL or is_gguf(options.model):
        fetch_with_bars(options.model)
    with stop_signals_raise(), running_stack(options, console) as stack:
        console.print(f"{_what_runs(options)}\nPrompt: {prompt}\n", style="bold", markup=False, highlight=False)
        _ask(stack, request)


def _ask(stack: LocalStack, request: inference_pb2.GenerateRequest) -> None:
    try:
        answer = run_and_show(request, Display(stack.gateway_address, stack.otlp_address))
        stack.check_running()
    except BatonError as error:
        raise BatonError(error.code, f"{error.message}\n{stack.log_tails()}") from error
    if not answer.token_ids:
        raise BatonError(ErrorCode.INTERNAL, f"the answer has no tokens\n{stack.log_tails()}")


def _what_runs(options: StackOptions) -> str:
    if options.aggregated:
        return f"{options.model}: {options.decode} aggregated worker(s)"
    return (
        f"{options.model}: {options.prefill} prefill and {options.decode} decode worker(s), KV over {options.connector}"
    )
