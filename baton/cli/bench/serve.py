"""`baton bench serve`: sends a load to an endpoint and reports what its clients saw."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from baton.bench.load.fleet import LoadResult, ask_target, run_load
from baton.bench.load.lag import ClientLag
from baton.bench.load.options import ARRIVALS, LoadOptions, check_load
from baton.bench.load.sender import Counts
from baton.bench.report.load_report import load_report
from baton.bench.row_files import check_parquet
from baton.bench.run_folder import REPORT, Run, describe, write_run
from baton.bench.slo import closest_miss, parse_slo
from baton.bench.summary import summarize
from baton.bench.workloads.options import WORKLOADS, make_workload
from baton.cli.bench.load_flags import DEFAULT_REQUESTS, load_options
from baton.cli.bench.summary_table import print_summary
from baton.cli.generate import DEFAULT_GATEWAY
from baton.errors import BatonError, ErrorCode, invalid
from baton.local.run_folder import read_run_file


def serve(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(
            help="grpc://host:port of a gateway, or http://host:port of an OpenAI-compatible endpoint; default: the "
            f"running stack's gateway, else grpc://{DEFAULT_GATEWAY}."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Default: the target's first.")] = "",
    workload: Annotated[str, typer.Option(help=f"One of: {', '.join(WORKLOADS)}.")] = "random",
    trace: Annotated[
        str, typer.Option(help="A Mooncake trace (JSON lines) or a .csv of arrival_s,input_tokens,output_tokens.")
    ] = "",
    arrivals: Annotated[
        str | None,
        typer.Option(
            help=f"One of: {', '.join(ARRIVALS)}. Default: poisson; of a trace, trace; closed with --concurrency."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests (multi-turn: conversations) a second.")] = 1.0,
    burstiness: Annotated[float, typer.Option(help="Of gamma: 1 is Poisson, below 1 comes in bursts.")] = 1.0,
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: so many requests at once.")] = None,
    requests: Annotated[
        int | None,
        typer.Option(help=f"Stop after so many (conversations). Default: {DEFAULT_REQUESTS}; a trace's all."),
    ] = None,
    duration_s: Annotated[float | None, typer.Option(help="Send for so long.")] = None,
    warmup: Annotated[int, typer.Option(help="Requests before the load, not counted; other prompts.")] = 4,
    input_tokens: Annotated[int, typer.Option(help="A prompt's own tokens, on average.")] = 512,
    output_tokens: Annotated[int, typer.Option(help="An answer's tokens, on average.")] = 128,
    length_spread: Annotated[float, typer.Option(help="Lengths are uniform within this share of the mean.")] = 0.0,
    prefix_tokens: Annotated[int, typer.Option(help="shared-prefix: a prefix; multi-turn: the system prompt.")] = 512,
    prefixes: Annotated[int, typer.Option(help="shared-prefix: how many there are.")] = 8,
    turns: Annotated[int, typer.Option(help="multi-turn: requests of a conversation.")] = 4,
    think_s: Annotated[float, typer.Option(help="multi-turn: from an answer to the next turn.")] = 0.0,
    document_tokens: Annotated[int, typer.Option(help="long-document: a document.")] = 8192,
    questions: Annotated[int, typer.Option(help="long-document: requests about each.")] = 4,
    speed: Annotated[float, typer.Option(help="trace: so many times as fast.")] = 1.0,
    length_scale: Annotated[float, typer.Option(help="trace: factor of all lengths, shared prefixes included.")] = 1.0,
    longest_request: Annotated[
        int | None, typer.Option(help="trace: leave longer ones out, answer included. Default: what the target serves.")
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Goodput counts requests within it: ttft=500ms,itl=40ms,tpot=…,gap=…,e2e=…")
    ] = None,
    seed: Annotated[int, typer.Option(help="Arrivals and prompts are the same for the same seed.")] = 0,
    prompt_seed: Annotated[
        int | None, typer.Option(help="Other prompts at the same arrivals, so that none is cached from a run before.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Prompts are token ids from 100 up to this.")] = 30_000,
    temperature: Annotated[float, typer.Option(help="0 is greedy. Answers do not end before their length.")] = 0.0,
    processes: Annotated[int, typer.Option(help="Of the client; raise it when the client is the bottleneck.")] = 1,
    timeout_s: Annotated[float, typer.Option(help="A request fails after so long.")] = 600.0,
    drain_s: Annotated[float, typer.Option(help="Wait so long for answers when all is sent.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. Default: bench-TIME.")] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Requests as Parquet, too.")] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the results' params; can be repeated.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Of the latencies' names in the results: serve_ttft_ms.")] = "serve",
) -> None:
    """Send a load to an endpoint; show latencies, throughput and goodput; write results, requests and a report.

    TTFT is the time to the first message with tokens. ITL is the time between two such messages, TPOT the mean time of
    a token after the first. Ctrl-C ends the load early and keeps what has come; a second one drops it.
    """
    objectives = parse_slo(slo) if slo is not None else None
    labels = parse_labels(label or [])
    if parquet:
        check_parquet()
    options = load_options(context.params, target or default_target())
    console = Console()
    options = complete(options)
    notes = list(make_workload(options.workload).notes)
    result = run_with_bar(options, console)
    folder = out or Path(time.strftime("bench-%Y%m%d-%H%M%S"))
    summary = summarize(result.rows, objectives)
    if result.interrupted:
        notes.append("interrupted: these are partial results")
    if objectives and summary.num_complete and (miss := closest_miss(objectives, result.rows)):
        notes.append(miss)
    info = describe(options, result, objectives, labels, notes)
    write_run(folder, info, result.rows, summary, prefix, parquet)
    (folder / REPORT).write_text(load_report(Run(info, result.rows), summary))
    print_summary(console, f"{options.model} at {options.target}", summary, objectives)
    for lag in info.lags:
        console.print(_client_line(lag), highlight=False)
    for note in info.notes:
        console.print(note, style="bold yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Wrote {folder / REPORT}", highlight=False, markup=False)
    if result.interrupted:
        raise typer.Exit(130)
    if not summary.num_complete:
        raise BatonError(ErrorCode.UNAVAILABLE, "no request was answered completely; see the failures above")


def default_target() -> str:
    """The gateway of the stack that runs here, else where one listens by default."""
    running = read_run_file()
    return f"grpc://{running.gateway_address if running else DEFAULT_GATEWAY}"


def complete(options: LoadOptions) -> LoadOptions:
    """Checked, and with what the target says: the model's name, and the longest request that it serves.

    Raises:
        BatonError: as `check_load` and `ask_target`.
    """
    check_load(options)
    make_workload(options.workload)
    served = ask_target(options)
    scale = options.workload.scale
    if scale.longest is None:
        scale = msgspec.structs.replace(scale, longest=served.max_model_len)
    workload = msgspec.structs.replace(options.workload, scale=scale)
    return msgspec.structs.replace(options, model=served.model, workload=workload)


def run_with_bar(options: LoadOptions, console: Console) -> LoadResult:
    """As `run_load`, with its progress on the terminal."""
    total = options.num_sessions
    if options.workload.kind == "multi-turn" and total is not None:
        total *= options.workload.num_turns
    if total is None:
        total = make_workload(options.workload).num_sessions
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bars:
        bar = bars.add_task("warming up", total=None if options.duration_s is not None else total)

        def update(counts: Counts) -> None:
            text = f"{counts.sent - counts.ended} under way, {counts.failed} failed, {counts.tokens:,} tokens"
            bars.update(bar, completed=counts.ended, description=text)

        return run_load(options, update)


def _client_line(lag: ClientLag) -> str:
    return (
        f"Client process {lag.process}: event loop {lag.loop_lag_p99_ms:.1f} ms behind and requests "
        f"{lag.lateness_p99_ms:.1f} ms late (p99), {lag.cpu_share:.0%} of a core"
    )


def parse_labels(texts: list[str]) -> dict[str, str]:
    """Raises:
    BatonError: INVALID_ARGUMENT for one that is no NAME=VALUE.
    """
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise invalid(f"--label: got {text!r}, expected NAME=VALUE, as in mode=apart")
        labels[name] = value
    return labels
