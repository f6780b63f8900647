"""A load's summary for a terminal."""

from rich.console import Console
from rich.table import Table

from baton.bench.slo import Slo
from baton.bench.summary import Summary
from baton.bench.summary_rows import LATENCY_HEADER, latency_rows, summary_rows


def print_summary(console: Console, title: str, summary: Summary, slo: Slo | None) -> None:
    """A table of latencies, then rates, then what failed."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(LATENCY_HEADER):
        table.add_column(column, justify="right" if position else "left")
    for row in latency_rows(summary):
        table.add_row(*row)
    console.print(table)
    rates = Table(show_header=False, box=None, pad_edge=False)
    rates.add_column(style="bold")
    rates.add_column()
    for pair in summary_rows(summary, slo):
        rates.add_row(*pair)
    console.print(rates)
