"""Rows of a run that never was, and the report of rows."""

from baton.bench.load.lag import ClientLag
from baton.bench.load.options import LoadOptions
from baton.bench.report.load_report import load_report
from baton.bench.rows import RequestRow
from baton.bench.run_folder import Run, RunInfo
from baton.bench.slo import parse_slo
from baton.bench.summary import summarize
from baton.bench.workloads.options import WorkloadOptions


def sample_rows() -> list[RequestRow]:
    """Thirty requests, four a second, of nine tokens each; the first token comes later and later."""
    return [
        RequestRow(
            number,
            0,
            0,
            number / 4,
            number / 4,
            number / 4 + 1,
            16,
            9,
            None,
            [30.0 + number + 10 * token for token in range(9)],
        )
        for number in range(30)
    ]


def report(rows: list[RequestRow]) -> str:
    """The HTML of a run with these rows; names in it need escaping."""
    slo = parse_slo("ttft=50ms,itl=40ms")
    options = LoadOptions("grpc://h:1", "<model>", WorkloadOptions())
    lag = ClientLag(0, 1.0, 2.0, 1.0, 2.0, 0.1)
    info = RunInfo(options, slo, [lag], ["<b>note</b>"], False, {}, "baton bench serve", "machine", "abc", 0.0)
    return load_report(Run(info, rows), summarize(rows, slo))
