"""When one kind of worker is better than two apart."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.bench.slo import parse_slo
from baton.errors import invalid
from engine.step_log import StepWork
from simulator.costs import StepCosts
from simulator.questions import base
from simulator.study import Case, Result

_LENGTHS = ((256, 1024), (1024, 512), (2048, 256), (8192, 128))  # prompts and answers
_SPLITS = (2, 4, 6)  # prefill workers of eight
_BATCH = 64


def aggregation(
    workers: Annotated[int, typer.Option(help="In all; a multiple of 8 gives round splits.")] = 8,
    loads: Annotated[str, typer.Option(help="Percent of what all workers could compute.")] = "20,40,60,80",
    slo: Annotated[str, base.SloFlag] = "ttft=1s,itl=30ms",
    requests: Annotated[int, base.RequestsFlag] = 3000,
    costs: Annotated[Path, base.CostsFlag] = base.H200,
    processes: Annotated[int, base.ProcessesFlag] = 2,
    out: Annotated[Path | None, base.OutFlag] = None,
) -> None:
    """Goodput of aggregated workers beside the best split of as many apart, by lengths and load.

    Prompts share nothing. What workers could compute is told from the costs: each prompt alone, and decodes in
    batches of 64.
    """
    if workers < 2:
        raise invalid(f"got --workers {workers}, expected at least 2")
    found, objectives = base.costs_of(costs), parse_slo(slo)
    splits = sorted({min(workers - 1, max(1, round(workers * part / 8))) for part in _SPLITS})
    cells: list[tuple[tuple[int, int], int, int]] = []
    cases = []
    for lengths in _LENGTHS:
        worker_s = _worker_seconds(found.decode, *lengths)
        for percent in base.numbers("--loads", loads):
            load = base.random_load(
                *lengths, workers * percent / 100 / worker_s, max(1, round(requests * workers / 16))
            )
            for prefill in (0, *splits):
                sizes = (
                    base.cluster(found, prefill, workers - prefill) if prefill else base.cluster(found, 0, 0, workers)
                )
                cells.append((lengths, percent, prefill))
                cases.append(Case(sizes, found, load, slo=objectives))
    console = Console()
    results = dict(zip(cells, base.ask(console, cases, processes), strict=True))
    rows, lines = [], []
    for lengths, percent, prefill in cells:
        if prefill:
            continue
        together = results[lengths, percent, 0]
        by_split = {split: results[lengths, percent, split] for split in splits}
        best = max(by_split, key=lambda split, found=by_split: _good(found[split]))  # type: ignore[misc]
        apart = results[lengths, percent, best]
        rows.append(
            {
                "in, out": f"{lengths[0]}, {lengths[1]}",
                "load": f"{percent} %",
                "aggregated good": f"{_good(together):.0%}",
                "apart good": f"{_good(apart):.0%} ({best}:{workers - best})",
                "TTFT p99, ms": f"{together.ms('ttft', 'p99'):,.0f} / {apart.ms('ttft', 'p99'):,.0f}",
                "ITL p99, ms": f"{together.ms('itl', 'p99'):.1f} / {apart.ms('itl', 'p99'):.1f}",
                "better": _better(together, apart),
            }
        )
        params = {"workers": workers, "input": lengths[0], "output": lengths[1], "load_percent": percent, "slo": slo}
        for mode, got in (("aggregated", together), (f"apart {best}:{workers - best}", apart)):
            lines.append(base.line("sim_slo_share", found, params | {"mode": mode}, _good(got), "ratio"))
            for latency in ("ttft", "itl"):
                more = params | {"mode": mode, "percentile": "p99"}
                lines.append(base.line(f"sim_{latency}_ms", found, more, got.ms(latency, "p99"), "ms"))
    base.answer(console, f"{workers} workers, share of requests within {slo}", rows, lines, None, out)


def _worker_seconds(steps: StepCosts, input_tokens: int, output_tokens: int) -> float:
    """What a request takes of one worker's time."""
    prompt = StepWork(0, 0, input_tokens, input_tokens * (input_tokens + 1) / 2, 1)
    decodes = StepWork(_BATCH, _BATCH * (input_tokens + output_tokens // 2), 0, 0.0, _BATCH)
    return steps.seconds(prompt) + output_tokens * steps.seconds(decodes) / _BATCH


def _good(result: Result) -> float:
    return result.summary.good_share or 0.0


def _better(together: Result, apart: Result) -> str:
    difference = _good(together) - _good(apart)
    if abs(difference) < 0.02:
        return "equal"
    return "aggregated" if difference > 0 else "apart"
