"""`baton simulate run`: one cluster under one load, with the results of a measured one."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from baton.bench.load.fleet import LoadResult
from baton.bench.report.load_report import load_report
from baton.bench.run_folder import REPORT, Run, describe, write_run
from baton.bench.slo import closest_miss, parse_slo
from baton.cli.bench.serve import parse_labels
from baton.cli.bench.summary_table import print_summary
from baton.config import POLICIES
from baton.errors import BatonError, ErrorCode, invalid
from engine.config import CacheConfig, SchedulerConfig
from simulator.cli.flags import longest_request, num_blocks, parse_failure, serve_flags, simulated_load
from simulator.cluster import ClusterOptions
from simulator.costs import LinkCosts, read_costs
from simulator.figures import summarize_records
from simulator.routing import POLICIES as ROUTING
from simulator.simulation import Simulation

H200 = Path(__file__).resolve().parents[1] / "fitted" / "llama8b-h200.json"


def run(
    context: typer.Context,
    prefill: Annotated[int, typer.Option(help="Prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(help="Decode workers.")] = 1,
    aggregated: Annotated[int, typer.Option(help="Workers that do both; with --prefill 0 --decode 0.")] = 0,
    policy: Annotated[str, typer.Option(help=f"Of routing; one of: {', '.join(ROUTING)}.")] = "prefix",
    costs: Annotated[Path, typer.Option(help="What steps, writes and messages take, as `fit` writes it.")] = H200,
    link_gb_s: Annotated[float | None, typer.Option(help="Bandwidth of each worker for KV, each way.")] = None,
    num_kv_blocks: Annotated[
        int | None, typer.Option("--num-blocks", help="Of each worker. Default: what fits, as --costs says.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens. Large blocks make large simulations faster.")] = 16,
    max_model_len: Annotated[int, typer.Option(help="Tokens of the longest request, answer included.")] = 131_072,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Requests of a step.")] = 256,
    long_prefill_token_threshold: Annotated[
        int | None, typer.Option(help="Most tokens of one prompt in a step while others want some. Default: half.")
    ] = None,
    scheduling_policy: Annotated[str, typer.Option(help=f"One of: {', '.join(POLICIES)}.")] = "fcfs",
    copies: Annotated[int, typer.Option(help="The trace so many times at once, each with prompts of its own.")] = 1,
    fail: Annotated[
        list[str] | None, typer.Option(help="SECONDS:SHARE of the workers that die then; can be repeated.")
    ] = None,
    rows: Annotated[bool, typer.Option(help="Write requests and a report. Without, a million fit into memory.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. Default: simulated-TIME.")] = None,
) -> None:
    """Simulate one load on one cluster; show and write what `baton bench serve` would.

    All other flags say what the load is, as `baton bench serve` takes them: --workload, --trace, --rate, --slo, ...
    `baton bench compare` sets the folder beside a measured one.
    """
    given = serve_flags(context.args)
    objectives = parse_slo(given["slo"]) if given["slo"] is not None else None
    labels = parse_labels(given["label"] or [])
    found = read_costs(costs)
    if link_gb_s is not None:
        if not link_gb_s > 0:
            raise invalid(f"got --link-gb-s {link_gb_s:g}, expected GB/s above 0")
        link = LinkCosts(found.link.latency_s, link_gb_s * 1e9)
        found = msgspec.structs.replace(found, link=link)
    scheduler = SchedulerConfig(
        max_num_batched_tokens,
        max_num_seqs,
        policy=scheduling_policy,
        long_prefill_token_threshold=long_prefill_token_threshold,
    )
    cluster = ClusterOptions(
        num_prefill=prefill,
        num_decode=decode,
        num_aggregated=aggregated,
        num_blocks=num_blocks(num_kv_blocks, found, block_size),
        max_model_len=max_model_len,
        policy=policy,
        cache=CacheConfig(block_size=block_size),
        prefill=scheduler,
        decode=scheduler,
        seed=given["seed"],
    )
    longest_request(given, cluster)
    options, workload = simulated_load(given, copies)
    options = msgspec.structs.replace(options, model=options.model or costs.stem)
    failures = [parse_failure(text) for text in fail or []]
    console = Console()
    started_s = time.perf_counter()
    simulation = Simulation(cluster, found, options, workload, failures)
    with console.status("simulating"):
        records = simulation.run()
    took_s = time.perf_counter() - started_s
    notes = [*workload.notes, f"simulated, not measured; costs: {found.source}"]
    title = f"{options.model}, simulated: {prefill} prefill, {decode} decode, {aggregated} aggregated, {policy}"
    token_s = found.messages.token_s
    summary = summarize_records(records, token_s, objectives)
    if rows:
        all_rows = sorted((record.row(token_s) for record in records), key=lambda row: row.sent_s)
        folder = out or Path(time.strftime("simulated-%Y%m%d-%H%M%S"))
        if objectives and summary.num_complete and (miss := closest_miss(objectives, all_rows)):
            notes.append(miss)
        info = describe(options, LoadResult(all_rows, [], False), objectives, labels, notes)
        write_run(folder, info, all_rows, summary, "sim", parquet=False)
        (folder / REPORT).write_text(load_report(Run(info, all_rows), summary))
        console.print(f"Wrote {folder / REPORT}", highlight=False, markup=False)
    print_summary(console, title, summary, objectives)
    for use in simulation.use():
        console.print(
            f"{use.num_workers} {use.role.value}: busy {use.busy_share:.0%}, {use.num_steps:,} steps, prefix hits "
            f"{use.prefix_hit_share:.1%}",
            highlight=False,
        )
    console.print(
        f"{len(records):,} requests over {simulation.loop.now_s:,.1f} s simulated in {took_s:.1f} s", highlight=False
    )
    if not summary.num_complete:
        raise BatonError(ErrorCode.UNAVAILABLE, "no request was answered completely; see the failures above")
