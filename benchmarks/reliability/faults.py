"""Counts what goes wrong in simulated schedules of faults and in kills of real workers: `make faults`."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import record
from tests.e2e.kills import nursed_stack, run_kills
from tests.fakes.tiny_models import write_tiny_model
from tests.simulation.processes import explore


def main() -> int:
    """0 when nothing was wrong, leaked or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started_s = time.perf_counter()
    explored = explore(options.schedules)
    print(explored.output)
    counts = explored.counts
    problems = {kind: counts[kind] for kind in ("wrong", "leaked", "lost")}
    seconds = time.perf_counter() - started_s
    lines = [
        record.result(
            "fault_schedules",
            "simulated",
            {"processes": 2, "seconds": round(seconds, 1)},
            counts["fault_schedules"],
            "schedules",
            **problems,
        )
    ]
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model("qwen2", Path(folder) / "model")
        with nursed_stack(Path(folder) / "model", Path(folder)) as stack:
            kills = run_kills(stack, options.kills)
    seconds = time.perf_counter() - started_s
    kill_problems = {"wrong": len(kills.wrong), "leaked": len(kills.leaked), "lost": len(kills.lost)}
    params = {"requests": kills.requests, "answered": kills.answered, "failed_clearly": kills.failed_clearly}
    lines.append(
        record.result(
            "real_process_kills",
            "tiny",
            {**params, "seconds": round(seconds, 1)},
            kills.kills,
            "kills",
            **kill_problems,
        )
    )
    for line in lines:
        print({key: line[key] for key in ("metric", "value", "params", "wrong", "leaked", "lost")})
    print("written to", record.write("faults", lines))
    return int(any([*problems.values(), *kill_problems.values()]))


if __name__ == "__main__":
    sys.exit(main())
