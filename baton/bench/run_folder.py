"""The folder of one measured load: what was asked, what came of it, every request, and the report."""

import time
from pathlib import Path

import msgspec

from baton.bench.load.fleet import LoadResult
from baton.bench.load.lag import ClientLag, bottleneck
from baton.bench.load.options import LoadOptions
from baton.bench.provenance import command_line, commit, machine
from baton.bench.result_lines import encode_lines, result_lines
from baton.bench.row_files import read_rows, write_jsonl, write_parquet
from baton.bench.rows import RequestRow
from baton.bench.slo import Slo
from baton.bench.summary import Summary
from baton.errors import invalid

RUN, RESULTS, ROWS, REPORT = "run.json", "results.jsonl", "requests.jsonl", "report.html"


class RunInfo(msgspec.Struct, frozen=True):
    """What a run was, for whoever reads its folder later."""

    options: LoadOptions
    slo: Slo | None
    lags: list[ClientLag]
    notes: list[str]  # what a reader should know; the client's being the bottleneck among it
    interrupted: bool
    labels: dict[str, str]
    command: str
    machine: str
    commit: str
    unix_s: float


class Run(msgspec.Struct, frozen=True):
    """A folder that was read."""

    info: RunInfo
    rows: list[RequestRow]


def describe(
    options: LoadOptions, result: LoadResult, slo: Slo | None, labels: dict[str, str], notes: list[str]
) -> RunInfo:
    """Of a run of this process that has just ended."""
    doubt = bottleneck(result.lags)
    return RunInfo(
        options=options,
        slo=slo,
        lags=result.lags,
        notes=([doubt] if doubt else []) + notes,
        interrupted=result.interrupted,
        labels=labels,
        command=command_line(),
        machine=machine(),
        commit=commit(),
        unix_s=time.time(),
    )


def write_run(
    folder: Path, info: RunInfo, rows: list[RequestRow], summary: Summary, prefix: str, parquet: bool
) -> None:
    """Makes the folder and everything in it but the report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN).write_bytes(msgspec.json.format(msgspec.json.encode(info), indent=2))
    lines = result_lines(summary, info.options, info.slo, prefix, info.labels, bottleneck(info.lags))
    (folder / RESULTS).write_bytes(encode_lines(lines))
    write_jsonl(folder / ROWS, rows)
    if parquet:
        write_parquet(folder / ROWS.replace(".jsonl", ".parquet"), rows)


def read_run(folder: Path) -> Run:
    """Raises:
    BatonError: INVALID_ARGUMENT for what is no such folder.
    """
    try:
        info = msgspec.json.decode((folder / RUN).read_bytes(), type=RunInfo)
        return Run(info, read_rows(folder / ROWS))
    except (OSError, msgspec.MsgspecError) as error:
        raise invalid(f"got {folder}, expected a folder that `baton bench serve` wrote ({error})") from error
