"""Prints every committed result with its target, where one is set, and the ratio; fails when a target is missed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

# What a result must reach, as a factor of its baseline (throughputs: higher is better).
TARGETS: dict[str, Callable[[dict[str, Any]], float]] = {
    "cpu_decode_tok_s": lambda params: 1.5 if params["batch"] >= 8 else 1.0,
    "cpu_prefill_tok_s": lambda params: 1.0,
}


def main() -> int:
    """0 when every target is met."""
    missed = 0
    for file in sorted(RESULTS.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            params = " ".join(f"{key}={value}" for key, value in entry["params"].items())
            text = f"{entry['metric']:<22} {entry['model']:<14} {params:<48} {entry['value']:>10.1f} {entry['unit']:<6}"
            baseline = entry.get("baseline")
            if baseline:
                ratio = entry["value"] / baseline["value"]
                text += f" {ratio:.2f}x of {baseline['value']:.1f} ({baseline['name']})"
                target = TARGETS.get(entry["metric"])
                if target:
                    wanted = target(entry["params"])
                    missed += ratio < wanted
                    text += f", wanted {wanted:g}x: {'met' if ratio >= wanted else 'MISSED'}"
            print(text)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
