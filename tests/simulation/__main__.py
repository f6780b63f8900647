"""Runs many schedules, or one again: `PYTHONHASHSEED=0 python -m tests.simulation --schedules 10000`."""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter

import msgspec

from tests.simulation.schedule import Schedule, draw
from tests.simulation.shrink import shrink
from tests.simulation.world import Outcome, simulate

_COLLECT_EVERY = 25  # schedules
_SHOWN = 3


def main() -> int:
    """0 when nothing was wrong, leaked or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the seeds follow one another")
    parser.add_argument("--replay", metavar="SEED|JSON", help="one schedule alone, and how its requests ended")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: the order of sets is part of a schedule")
    if options.replay:
        return _replay(options.replay)
    return _explore(range(options.first_seed, options.first_seed + options.schedules))


def _replay(text: str) -> int:
    schedule = msgspec.json.decode(text, type=Schedule) if text.startswith("{") else draw(int(text))
    print(msgspec.json.encode(schedule).decode())
    outcome = simulate(schedule)
    for line in (*outcome.ends, *outcome.wrong, *outcome.leaked, *outcome.lost):
        print(line)
    return int(outcome.failed)


def _explore(seeds: range) -> int:
    # Garbage is collected here and not in between: most of what a collection would look at are the imports.
    gc.collect()
    gc.freeze()
    gc.disable()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    ends: Counter[str] = Counter()
    bad: Counter[str] = Counter(wrong=0, leaked=0, lost=0)
    shown = 0
    for seed in seeds:
        schedule = draw(seed)
        outcome = simulate(schedule)
        ends.update(outcome.ends)
        bad.update(_kinds(outcome))
        if outcome.failed and shown < _SHOWN:
            shown += 1
            _show(schedule, outcome)
        if seed % _COLLECT_EVERY == 0:
            gc.collect()
    seconds = {"seconds": round(time.perf_counter() - started_s, 1), "cpu_s": round(time.process_time() - cpu_s, 1)}
    print(json.dumps({"fault_schedules": len(seeds), **bad, **seconds, "ends": dict(ends.most_common())}), flush=True)
    return int(any(bad.values()))


def _kinds(outcome: Outcome) -> list[str]:
    return [kind for kind in ("wrong", "leaked", "lost") if getattr(outcome, kind)]


def _show(schedule: Schedule, outcome: Outcome) -> None:
    """The failure as short as it gets, and how to have it again."""
    kinds = _kinds(outcome)
    short = shrink(schedule, lambda smaller: any(kind in _kinds(simulate(smaller)) for kind in kinds))
    outcome = simulate(short)
    print(f"seed {schedule.seed} fails; shrunk to:")
    for kind in _kinds(outcome):
        print(f"  {kind}: {'; '.join(getattr(outcome, kind))}")
    text = msgspec.json.encode(short).decode()
    print(f"  PYTHONHASHSEED=0 PYTHONPATH=.:kernels python -m tests.simulation --replay '{text}'", flush=True)


if __name__ == "__main__":
    sys.exit(main())
