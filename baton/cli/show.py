"""One request from the terminal: streams the answer, then prints its figures and its trace."""

import json
import sys

import msgspec
from rich.console import Console

from baton.cli.client import Answer, connect, first_model, stream_answer
from baton.cli.figures import as_json, figures_table
from baton.cli.trace_view import try_fetch_trace
from baton.rpc import inference_pb2
from baton.telemetry.tree import render_tree


class Display(msgspec.Struct, frozen=True):
    """What to show and where to ask for it."""

    gateway: str
    traces: str | None  # None: no trace
    as_json: bool = False
    timeout_s: float = 600.0


def run_and_show(request: inference_pb2.GenerateRequest, display: Display) -> Answer:
    """Sends the request (to the gateway's first model if it names none) and prints what comes.

    Raises:
        BatonError: when the gateway refuses or fails; nothing more is printed then.
    """
    with connect(display.gateway) as channel:
        if not request.model:
            request.model = first_model(channel, display.gateway)
        on_text = _ignore if display.as_json else _print_piece
        answer = stream_answer(channel, display.gateway, request, display.timeout_s, on_text)
    spans, problem = try_fetch_trace(display.traces, answer) if display.traces and answer.trace_id else ([], None)
    if problem is not None:
        print(problem, file=sys.stderr)
    if display.as_json:
        trace = [span._asdict() for span in spans]
        print(json.dumps(as_json(answer) | {"trace": trace}, ensure_ascii=False, indent=2))
        return answer
    console = Console()
    console.print("\n")
    console.print(figures_table(answer))
    if spans:
        console.print()
        console.print(render_tree(spans))
    return answer


def _print_piece(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(text: str) -> None:
    """With --json the text comes with everything else."""
