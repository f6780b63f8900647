"""What all questions have in common: clusters of H200s, loads of a trace, and where answers go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from baton.bench.load.options import LoadOptions
from baton.bench.plot.chart import Chart
from baton.bench.provenance import result
from baton.bench.result_lines import encode_lines
from baton.bench.workloads.options import WorkloadOptions
from baton.bench.workloads.traces import Scale
from baton.errors import invalid
from engine.config import CacheConfig, SchedulerConfig
from simulator.cluster import ClusterOptions
from simulator.costs import Costs, read_costs
from simulator.study import Case, Result, run_cases

BLOCK_SIZE = 128  # tokens; answers take several times as long with the product's 16, and differ little
MAX_MODEL_LEN = 131_072
H200 = Path(__file__).resolve().parents[1] / "fitted" / "llama8b-h200.json"
TraceFlag = typer.Option(help="A trace in the Mooncake format.")
CostsFlag = typer.Option(help="What steps, writes and messages take.")
RequestsFlag = typer.Option(help="Of each simulation, for each 16 workers; fewer are faster and less certain.")
ProcessesFlag = typer.Option(help="Simulations at once.")
OutFlag = typer.Option(help="Result lines go to OUT.jsonl, and what can be drawn to OUT.svg.")
SloFlag = typer.Option(help="A request within it counts as good.")


def cluster(costs: Costs, prefill: int, decode: int, aggregated: int = 0, policy: str = "prefix") -> ClusterOptions:
    """Workers with all of their memory."""
    steps = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=256)
    # A step of an aggregated worker is what its decodes wait for, so it takes less of a prompt.
    mixed = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=256)
    return ClusterOptions(
        num_prefill=prefill,
        num_decode=decode,
        num_aggregated=aggregated,
        num_blocks=int(costs.kv_bytes / (costs.kv_bytes_per_token * BLOCK_SIZE)),
        max_model_len=MAX_MODEL_LEN,
        policy=policy,
        cache=CacheConfig(block_size=BLOCK_SIZE),
        prefill=steps,
        decode=mixed if aggregated else steps,
    )


def trace_load(trace: Path, num_requests: int) -> LoadOptions:
    """The first requests of a trace, at its times."""
    workload = WorkloadOptions(kind="trace", trace=str(trace), scale=Scale(longest=MAX_MODEL_LEN))
    return LoadOptions("simulated", "simulated", workload, arrivals="trace", num_sessions=num_requests)


def random_load(input_tokens: int, output_tokens: int, rate: float, num_requests: int) -> LoadOptions:
    """Prompts that share nothing, at random times."""
    workload = WorkloadOptions(input_tokens=input_tokens, output_tokens=output_tokens, length_spread=0.5)
    return LoadOptions("simulated", "simulated", workload, rate=rate, num_sessions=num_requests)


def costs_of(path: Path) -> Costs:
    """Raises:
    BatonError: INVALID_ARGUMENT for costs without the size of a worker's memory.
    """
    costs = read_costs(path)
    if not (costs.kv_bytes and costs.kv_bytes_per_token):
        raise invalid(f"--costs {path}: got no kv_bytes and kv_bytes_per_token, expected both above 0")
    return costs


def numbers(flag: str, text: str) -> list[int]:
    """Reads "8,64,512".

    Raises:
        BatonError: INVALID_ARGUMENT for anything else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise invalid(f"got {flag} {text}, expected numbers above 0 with commas between them, as in 8,64,512")
    return [int(part) for part in parts]


def ask(console: Console, cases: Sequence[Case], num_processes: int) -> list[Result]:
    """Runs them, with a bar."""
    if num_processes < 1:
        raise invalid(f"got --processes {num_processes}, expected at least 1")
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bars:
        bar = bars.add_task("", total=len(cases))
        return run_cases(cases, num_processes, lambda: bars.advance(bar))


def line(metric: str, costs: Costs, params: dict[str, Any], value: float, unit: str, **more: Any) -> dict[str, Any]:
    """A result line of a simulation."""
    return result(metric, "llama8b", params, value, unit, simulated=costs.source, **more)


def answer(
    console: Console,
    title: str,
    rows: Sequence[dict[str, str]],
    lines: Sequence[dict[str, Any]],
    chart: Chart | None,
    out: Path | None,
) -> None:
    """Shows a table, and writes what is to be kept."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if position else "left", overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    if out is not None:
        out.with_suffix(".jsonl").write_bytes(encode_lines(lines))
        if chart is not None:
            out.with_suffix(".svg").write_text(chart.svg() + "\n")
        console.print(f"Wrote {out.with_suffix('.jsonl')}", highlight=False, markup=False)


def loaded(case: Case, **changes: Any) -> Case:
    """Another case like it."""
    return msgspec.structs.replace(case, **changes)
