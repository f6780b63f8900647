"""The tables of `baton top`, from two readings of each process."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.cli.top.readings import Window, share
from baton.telemetry import metrics as m

_STALE_S = 5.0  # older figures of an engine core are marked
_STATES = ("active", "cached", "free", "quarantined")


def tables(windows: Mapping[str, Window | str]) -> RenderableType:
    """Gateways, workers, and what is wrong with those that do not answer."""
    found = {name: window for name, window in windows.items() if isinstance(window, Window)}
    problems = [Text(f"{name} {window}", style="red") for name, window in windows.items() if isinstance(window, str)]
    workers = {name: window for name, window in found.items() if window.now.has(m.WORKER_INFO)}
    gateways = {name: window for name, window in found.items() if window.now.has(m.REQUESTS_RUNNING)}
    return Group(*_gateways(gateways), *_workers(workers), *problems)


def _gateways(windows: Mapping[str, Window]) -> list[Table]:
    if not windows:
        return []
    columns = (
        "gateway",
        "running",
        "ended/s",
        "out tok/s",
        "in tok/s",
        "TTFT",
        "ITL",
        "SLO ttft",
        "SLO itl",
        "retries/s",
    )
    table = _table(columns)
    for name, window in windows.items():
        kept = [
            share(window.increase(m.SLO_REQUESTS, slo=slo, met="true"), window.increase(m.SLO_REQUESTS, slo=slo))
            for slo in ("ttft", "itl")
        ]
        table.add_row(
            name,
            f"{window.now.total(m.REQUESTS_RUNNING):.0f}",
            _number(window.rate(m.REQUESTS)),
            _number(window.rate(m.OUTPUT_TOKENS)),
            _number(window.rate(m.PROMPT_TOKENS)),
            _time(window.mean(m.TTFT)),
            _time(window.mean(m.ITL)),
            *map(_percent, kept),
            _number(window.rate(m.RETRIES)),
        )
    return [table]


def _workers(windows: Mapping[str, Window]) -> list[Table]:
    if not windows:
        return []
    columns = (
        "worker",
        "role",
        "run",
        "wait",
        "grants",
        "blocks",
        *_STATES,
        "step",
        "batch",
        "tok/s",
        "hits",
        "KV out",
    )
    table = _table((*columns, ""))
    for window in windows.values():
        now = window.now
        hits = share(window.increase(m.PREFIX_TOKENS, result="hit"), window.increase(m.PREFIX_TOKENS))
        sent = window.rate(m.TRANSFER_BYTES)
        table.add_row(
            now.label(m.WORKER_INFO, "worker"),
            now.label(m.WORKER_INFO, "role"),
            f"{now.total(m.ENGINE_REQUESTS, state='running'):.0f}",
            f"{now.total(m.ENGINE_REQUESTS, state='waiting'):.0f}",
            f"{now.total(m.GRANTS_OPEN):.0f}",
            f"{now.total(m.KV_POOL_BLOCKS):.0f}",
            *(f"{now.total(m.KV_BLOCKS, state=state):.0f}" for state in _STATES),
            _time(window.mean(m.STEP_TIME)),
            _number(window.mean(m.STEP_BATCH_REQUESTS)),
            _number(window.rate(m.STEP_BATCH_TOKENS, "_sum")),
            _percent(hits),
            "-" if sent is None else f"{sent / 1e6:,.1f} MB/s",
            _remarks(window),
        )
    return [table]


def _remarks(window: Window) -> Text:
    remarks = ["drains"] if window.now.total(m.DRAINING) else []
    age_s = window.now.total(m.STATS_AGE)
    if age_s > _STALE_S:
        remarks.append(f"engine silent for {age_s:.0f} s")
    if preempted := window.increase(m.PREEMPTIONS):
        remarks.append(f"{preempted:.0f} preempted")
    if not window.now.total(m.REDIS_UP):
        remarks.append("no Redis")
    return Text(", ".join(remarks), style="yellow")


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or column in ("role", "") else "right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
