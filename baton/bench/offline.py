"""The offline benchmarks: which script of the repository measures what, and the lines that it left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from baton.bench.costs import CEILINGS, Cost, decode_cost, prefill_cost
from baton.bench.provenance import ROOT
from baton.errors import BatonError, ErrorCode, invalid
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec

RESULTS = ROOT / "benchmarks" / "results"


class Script(msgspec.Struct, frozen=True):
    """One script below benchmarks/ and the NAME of the results/NAME.jsonl that it writes."""

    path: str
    results: str
    arguments: Sequence[str] = ()  # always given


SUITES: dict[str, dict[str, Sequence[Script]]] = {
    "latency": {"cpu": [Script("cpu/speed.py", "cpu_speed")], "gpu": [Script("gpu/steps.py", "gpu_steps")]},
    "throughput": {
        "cpu": [Script("cpu/throughput.py", "cpu_throughput")],
        "gpu": [Script("gpu/throughput.py", "gpu_throughput")],
    },
    "kernel": {
        "cpu": [
            Script("cpu/sampling.py", "cpu_sampling", ["--write"]),
            Script("engine/scheduling.py", "engine_scheduling"),
        ],
        "gpu": [Script("gpu/attention.py", "gpu_attention"), Script("gpu/linear.py", "gpu_linear")],
    },
    "transfer": {"gpu": [Script("gpu/transfer.py", "gpu_transfer")]},
    "startup": {
        "cpu": [Script("stack/startup.py", "stack_startup")],
        "gpu": [Script("gpu/load.py", "gpu_load")],
    },
}


def scripts(suite: str, device: str | None) -> Sequence[Script]:
    """Of a device, or of the first one that the suite has.

    Raises:
        BatonError: INVALID_ARGUMENT for a device that the suite has no script for.
    """
    found = SUITES[suite].get(device or next(iter(SUITES[suite])))
    if found is None:
        raise invalid(f"got --device {device} for {suite}, expected {' or '.join(SUITES[suite])}")
    return found


def run_script(script: Script, arguments: Sequence[str]) -> None:
    """Runs it in a process of its own, on this terminal.

    Raises:
        BatonError: FAILED_PRECONDITION where there is no such script, as in an installed package; INTERNAL when it
            fails.
    """
    file = ROOT / "benchmarks" / script.path
    if not file.is_file():
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, f"no {file}; run this in a clone of the repository that has this benchmark"
        )
    search = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, os.path.relpath(file, ROOT), *script.arguments, *arguments]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": search}, check=False).returncode
    if code:
        raise BatonError(ErrorCode.INTERNAL, f"benchmarks/{script.path} failed with exit code {code}; see above")


def result_entries(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The lines of results/NAME.jsonl, each with a floor where one can be said.

    Raises:
        BatonError: NOT_FOUND when there are none yet.
    """
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise BatonError(ErrorCode.NOT_FOUND, f"no {path}; run the benchmark first (without --show)")
    return [with_floor(json.loads(line)) for line in path.read_text().splitlines()]


def with_floor(entry: dict[str, Any]) -> dict[str, Any]:
    """Steps on a GPU with known ceilings get the roofline as their floor, in ms."""
    cost, ceiling = step_cost(entry), CEILINGS.get(entry.get("gpu", ""))
    if "floor" in entry or cost is None or ceiling is None:
        return entry
    return entry | {"floor": round(ceiling.floor_s(cost) * 1e3, 3)}


def step_cost(entry: dict[str, Any]) -> Cost | None:
    """Of a result that is one step of a model whose shape the repository has; None of any other."""
    folder = ROOT / "benchmarks" / "models" / str(entry["model"])
    if not (folder / "config.json").is_file():
        return None
    params = entry["params"]
    if entry["metric"] == "decode_step_ms":
        return decode_cost(load_model_spec(folder, None, LoadFormat.DUMMY), params["batch"], params["context"])
    if entry["metric"] == "prefill_ttft_ms":
        return prefill_cost(load_model_spec(folder, None, LoadFormat.DUMMY), params["tokens"])
    return None
