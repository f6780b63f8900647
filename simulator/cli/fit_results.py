"""`baton simulate fit-results`: costs of a GPU from committed results."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from baton.bench.provenance import ROOT
from baton.errors import invalid
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec
from simulator.costs import LinkCosts, MessageCosts, write_costs
from simulator.fitting.from_results import costs_from_results

_RESULTS = [ROOT / "benchmarks" / "results" / f"{name}.jsonl" for name in ("gpu_steps", "gpu_transfer")]


def fit_results(
    out: Annotated[Path, typer.Option(help="The file of costs.")],
    model: Annotated[Path, typer.Option(help="Folder with the config.json of a model that the results name.")],
    results: Annotated[list[Path] | None, typer.Option(help="Files of result lines. Default: those of GPUs.")] = None,
    gpu: Annotated[str, typer.Option(help="As the results name it.")] = "NVIDIA H200",
    link_gb_s: Annotated[float, typer.Option(help="Assumed: of each worker for KV, each way.")] = 50.0,
    link_latency_us: Annotated[float, typer.Option(help="Assumed: of a write.")] = 100.0,
    client_ms: Annotated[float, typer.Option(help="Assumed: from a client until its request is routed.")] = 1.0,
    call_ms: Annotated[float, typer.Option(help="Assumed: from the gateway to an engine core.")] = 0.3,
    token_ms: Annotated[float, typer.Option(help="Assumed: from an engine core to a client.")] = 0.5,
) -> None:
    """Fit steps of decodes and of prompts, on their own, to a GPU's committed results.

    Steps that have both are taken as the longer of the weights' reading and the prompt's computing, and the decodes.
    """
    if not link_gb_s > 0:
        raise invalid(f"got --link-gb-s {link_gb_s:g}, expected GB/s above 0")
    for flag, value in (("link-latency-us", link_latency_us), ("client-ms", client_ms), ("call-ms", call_ms)):
        if not value >= 0:
            raise invalid(f"got --{flag} {value:g}, expected a time from 0 on")
    lines: list[dict[str, Any]] = []
    for file in results or _RESULTS:
        lines += [json.loads(line) for line in file.read_text().splitlines()]
    spec = load_model_spec(model, model.name, LoadFormat.DUMMY)
    costs = costs_from_results(
        lines,
        spec,
        gpu,
        LinkCosts(link_latency_us / 1e6, link_gb_s * 1e9),
        MessageCosts(client_ms / 1e3, call_ms / 1e3, token_ms / 1e3),
    )
    write_costs(out, costs)
    print(f"{costs.source}\nWrote {out}")
