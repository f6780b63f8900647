"""One request from the terminal: streams the answer, or shows several, then prints figures and the trace."""

import json
import sys

import msgspec
from rich.console import Console

from baton.cli.client import Answer, connect, first_model, stream_answers
from baton.cli.figures import as_json, figures_table
from baton.cli.trace_view import try_fetch_trace
from baton.cli.with_key import with_key
from baton.errors import BatonError
from baton.rpc import inference_pb2
from baton.telemetry.tree import render_tree


class Display(msgspec.Struct, frozen=True):
    """What to show and where to ask for it."""

    gateway: str
    traces: str | None  # None: no trace
    as_json: bool = False
    timeout_s: float = 600.0


def run_and_show(request: inference_pb2.GenerateRequest, display: Display) -> Answer:
    """Sends the request (to the gateway's first model if it names none) and prints what comes; the first answer.

    One answer is printed as it comes, several one behind the other in the end.

    Raises:
        BatonError: when the gateway refuses or fails; the cursor is at the start of a line then.
    """
    with connect(display.gateway) as plain:
        channel = with_key(plain)
        if not request.model:
            request.model = first_model(channel, display.gateway)
        pieces = Pieces(silent=display.as_json or request.sampling.n > 1)
        try:
            answers = stream_answers(channel, display.gateway, request, display.timeout_s, pieces.show)
        except BatonError:
            pieces.end_line()
            raise
    answer = answers[0]
    spans, problem = try_fetch_trace(display.traces, answer) if display.traces and answer.trace_id else ([], None)
    if problem is not None:
        print(problem, file=sys.stderr)
    if display.as_json:
        trace = [span._asdict() for span in spans]
        told = {"answers": [as_json(one) for one in answers]} if request.sampling.n > 1 else as_json(answer)
        print(json.dumps(told | {"trace": trace}, ensure_ascii=False, indent=2))
        return answer
    console = Console()
    for index, one in enumerate(answers):
        if len(answers) > 1:
            console.print(f"\n[bold]Answer {index}[/bold]")
            console.print(one.text, markup=False, highlight=False)
        console.print("\n" if len(answers) == 1 else "")
        console.print(figures_table(one))
    if spans:
        console.print()
        console.print(render_tree(spans))
    return answer


class Pieces:
    """Prints an answer's text as it comes, unless `silent`: with --json it comes with everything else."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._last = "\n"

    def show(self, text: str) -> None:
        """Prints one piece."""
        if text and not self._silent:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._last = text

    def end_line(self) -> None:
        """What is printed next stands on a line of its own."""
        if not self._last.endswith("\n"):
            self.show("\n")
