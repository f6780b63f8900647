"""Restarts of a prefill and a decode worker under the same address, under load: wrong tokens, errors, memory."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.fetch import resolve_model
from baton.local.stack import LocalStack
from benchmarks.record import result, write
from tests.e2e.restarts import CLIENTS, MAX_TOKENS, restart_under_load, small_pools

MODEL = "smollm2-135m"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="restarts of each of the two workers")
    parser.add_argument("--warm-up", type=int, default=10, help="rounds before memory is looked at")
    options = parser.parse_args()
    model = resolve_model(MODEL)
    with LocalStack(small_pools(model)) as stack:
        counts = restart_under_load(stack, model, options.rounds, options.warm_up)
    print(counts)
    params = {"restarts": sum(counts.restarts.values()), "clients": CLIENTS, "max_tokens": MAX_TOKENS}
    lines = [
        result("restart_requests", MODEL, params, counts.requests, "requests"),
        result("restart_wrong_answers", MODEL, params, counts.wrong, "requests"),
        result("restart_failed_requests", MODEL, params, len(counts.errors), "requests"),
    ]
    for name, share in counts.growth().items():
        memory = {**params, "process": name, "rss_mib": round(counts.rss_after[name] / 2**20)}
        lines.append(result("restart_memory_growth", MODEL, memory, share * 100, "%"))
    print(f"written to {write('restarts', lines)}")
    sys.exit(1 if counts.wrong or counts.errors else 0)


if __name__ == "__main__":
    main()
