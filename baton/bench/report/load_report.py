"""The report of one load."""

import time

from baton.bench.report.load_charts import load_charts
from baton.bench.report.page import charts, heading, notes, page, paragraph, table
from baton.bench.result_lines import load_params
from baton.bench.run_folder import Run
from baton.bench.summary import Summary
from baton.bench.summary_rows import LATENCY_HEADER, latency_rows, summary_rows


def load_report(run: Run, summary: Summary) -> str:
    """One HTML document."""
    info = run.info
    params = ", ".join(f"{name} {value}" for name, value in (load_params(info.options) | info.labels).items())
    about = [
        ("Target", info.options.target),
        ("Load", params),
        ("Command", info.command),
        (
            "Client",
            f"{info.machine}; commit {info.commit}; {time.strftime('%Y-%m-%d %H:%M', time.gmtime(info.unix_s))} UTC",
        ),
    ]
    lags = [
        (
            str(lag.process),
            f"{lag.loop_lag_p99_ms:.1f}",
            f"{lag.loop_lag_max_ms:.1f}",
            f"{lag.lateness_p99_ms:.1f}",
            f"{lag.lateness_max_ms:.1f}",
            f"{lag.cpu_share:.0%}",
        )
        for lag in info.lags
    ]
    header = ("process", "loop lag p99, ms", "max", "requests late p99, ms", "max", "of a core")
    return page(
        f"{info.options.model}: {info.options.workload.kind}",
        notes(info.notes),
        table(about),
        heading("Latencies"),
        table(latency_rows(summary), LATENCY_HEADER),
        paragraph(
            "TTFT: from sending to the first message with tokens. ITL: between two such messages, of all requests "
            "together. TPOT: mean time of a token after the first. All as the client saw them, nearest rank."
        ),
        heading("Rates"),
        table(summary_rows(summary, info.slo)),
        heading("Charts"),
        charts(load_charts(run.rows, info.slo)),
        heading("The client itself"),
        table(lags, header),
    )
