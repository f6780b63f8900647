"""Flags of `baton simulate` as options: a load as `baton bench serve` takes it, workers that die, sizes."""

import contextlib
import functools
import io
from collections.abc import Sequence
from typing import Any

import typer

from baton.bench.load.options import LoadOptions
from baton.bench.workloads.base import Workload
from baton.bench.workloads.options import make_workload
from baton.cli.bench.load_flags import load_options
from baton.cli.bench.serve import serve
from baton.errors import invalid
from simulator.cluster import ClusterOptions, Failure
from simulator.content import ContentSource
from simulator.copies import Copies
from simulator.costs import Costs

_NOT_SIMULATED = ("--target", "--processes", "--timeout-s", "--drain-s", "--warmup", "--temperature", "--parquet")


def serve_flags(words: Sequence[str]) -> dict[str, Any]:
    """What `baton bench serve` makes of its flags, by the names of its parameters.

    Raises:
        BatonError: INVALID_ARGUMENT for flags that it does not have, or that mean nothing here.
    """
    for word in words:
        if word.partition("=")[0] in _NOT_SIMULATED:
            raise invalid(f"got {word.partition('=')[0]}, which has no meaning in a simulation; leave it out")
    found: dict[str, Any] = {}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command()
    @functools.wraps(serve)
    def take(context: typer.Context, **values: Any) -> None:
        found.update(context.params)

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            app(args=list(words))
    except SystemExit as end:  # how it ends in any case; its errors' classes are no part of Typer's interface
        if end.code:
            reason = said.getvalue().strip().rpartition("\n")[2]
            raise invalid(f"got {' '.join(words)!r}, expected flags of `baton bench serve` ({reason})") from None
    return found


def simulated_load(given: dict[str, Any], num_copies: int) -> tuple[LoadOptions, Workload]:
    """The load, and the workload with names in place of tokens."""
    options = load_options(given, "simulated")
    source = ContentSource(options.workload.seed, options.workload.vocab_size)
    workload = make_workload(options.workload, source)
    if num_copies != 1:
        workload = Copies(workload, source, num_copies)
    return options, workload


def num_blocks(given: int | None, costs: Costs, block_size: int) -> int:
    """Blocks of a worker.

    Raises:
        BatonError: INVALID_ARGUMENT when neither says how many.
    """
    if given is not None:
        return given
    if not (costs.kv_bytes and costs.kv_bytes_per_token):
        raise invalid("got no --num-blocks, and costs that do not say how large a worker's KV pool is; give one")
    return int(costs.kv_bytes / (costs.kv_bytes_per_token * block_size))


def longest_request(given: dict[str, Any], cluster: ClusterOptions) -> None:
    """Requests that no worker takes are left out of traces, as `baton bench serve` does."""
    if given["longest_request"] is None:
        given["longest_request"] = cluster.max_model_len


def parse_failure(text: str) -> Failure:
    """Reads "60:0.1": at 60 s a tenth of the workers.

    Raises:
        BatonError: INVALID_ARGUMENT for anything else.
    """
    at, colon, share = text.partition(":")
    try:
        failure = Failure(float(at), float(share))
    except ValueError:
        failure = Failure(-1.0, 0.0)
    if not colon or not 0 <= failure.at_s < float("inf") or not 0 < failure.share <= 1:
        raise invalid(f"--fail: got {text!r}, expected SECONDS:SHARE with a share above 0 and at most 1, as in 60:0.1")
    return failure
