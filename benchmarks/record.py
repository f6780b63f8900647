"""Where the repository's benchmark results stand, and the writing of them; `result` makes a line."""

import json
from pathlib import Path
from typing import Any

from baton.bench.provenance import ROOT, commit, machine, result

__all__ = ["RESULTS", "ROOT", "commit", "machine", "result", "write"]

RESULTS = ROOT / "benchmarks" / "results"


def write(name: str, lines: list[dict[str, Any]]) -> Path:
    """Writes benchmarks/results/NAME.jsonl, replacing what an earlier run left."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
