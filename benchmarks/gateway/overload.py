"""A gateway at three times the capacity of its workers: goodput, deadlines, and how fast others are refused.

One process holds the gateway, scripted workers with a fixed capacity, and the clients; requests come at random times.
Goodput counts requests that were whole within their deadline. The peak is the best phase at about the capacity.
Run on a machine that does nothing else: python benchmarks/gateway/overload.py
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import record
from tests.fakes.overload import Load, phases
from tests.fakes.text_model import write_text_model

_CALM = (0.8, 0.9, 1.0, 1.1)  # times the capacity


def main() -> int:
    """1 when a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload (%(default)s)")
    parser.add_argument("--calm-seconds", type=float, default=15.0, help="of each phase before (%(default)s)")
    parser.add_argument("--factor", type=float, default=3.0, help="requests as a factor of the capacity (%(default)s)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()
    load = Load()
    times = [(factor, options.calm_seconds) for factor in _CALM] + [(options.factor, options.seconds)]
    with tempfile.TemporaryDirectory() as folder:
        *calm, over = asyncio.run(phases(write_text_model(Path(folder)), load, times))
    peak_rps = max(counts.goodput_rps for counts in calm)
    started = over.good + over.late + len(over.other)
    params = {"factor": options.factor, "seconds": options.seconds, **load._asdict()}
    lines = [
        record.result(
            "gateway_overload_goodput_rps",
            "fake",
            params,
            over.goodput_rps,
            "1/s",
            baseline={"name": "best phase at 0.8 to 1.1 times the capacity", "value": round(peak_rps, 3)},
        ),
        record.result("gateway_overload_started_late", "fake", params, over.late / started, "share"),
        record.result(
            "gateway_overload_refusal_ms", "fake", {**params, "q": 0.5}, 1e3 * over.refusal_quantile_s(0.5), "ms"
        ),
        record.result(
            "gateway_overload_refusal_ms", "fake", {**params, "q": 0.99}, 1e3 * over.refusal_quantile_s(0.99), "ms"
        ),
        record.result(
            "gateway_overload_refusal_ms", "fake", {**params, "q": 1.0}, 1e3 * over.refusal_quantile_s(1.0), "ms"
        ),
    ]
    for counts, (factor, _) in zip([*calm, over], times, strict=True):
        print(
            f"{factor:g} x capacity: {counts.goodput_rps:.1f}/s good of {load.capacity_rps:.0f}/s, {counts.late} late, "
            f"{len(counts.refusal_s)} refused, {len(counts.other)} other {list(counts.other[:3])}"
        )
    for line in lines:
        print(f"{line['metric']} {line['params'].get('q', '')}: {line['value']} {line['unit']}")
    if not options.no_record:
        print(record.write("gateway_overload", lines))
    kept = over.goodput_rps >= 0.9 * peak_rps and over.refusal_quantile_s(0.99) <= 0.05 and not over.other
    return 0 if kept and over.late <= 0.001 * started else 1


if __name__ == "__main__":
    sys.exit(main())
