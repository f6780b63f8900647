"""What the load generator itself costs and adds, against a server with known delays: over gRPC and over HTTP.

One process of the client sends 50 requests a second of 128 tokens, which is to fit into one core. The server is the
double of the tests; it runs in a process of its own and keeps its own times, so that what the client adds is known.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baton.bench.load.fleet import run_load
from baton.bench.load.options import LoadOptions
from baton.bench.workloads.options import WorkloadOptions
from benchmarks.record import result, write
from tests.fakes.load_server import MODEL, Script, load_server


def main() -> None:
    """Measures, prints and writes benchmarks/results/client_load.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    lines = []
    with load_server(Script(ttft_s=0.1, itl_s=0.02)) as server:
        for transport, url in (("grpc", server.grpc_url), ("http", server.http_url)):
            workload = WorkloadOptions(output_tokens=args.output)
            load = LoadOptions(url, MODEL, workload, rate=args.rate, duration_s=args.seconds, num_warmup=8)
            found = run_load(load)
            lag, log = found.lags[0], {served.request_id: served for served in server.log()}
            added_ms = [
                row.ttft_ms - (log[f"bench-0-{row.name}"].sent_s[0] - log[f"bench-0-{row.name}"].came_s) * 1e3
                for row in found.rows
            ]
            params = {"transport": transport, "rate": args.rate, "output": args.output}
            for metric, value, unit in (
                ("client_core_share", lag.cpu_share, "cores"),
                ("client_loop_lag_p99_ms", lag.loop_lag_p99_ms, "ms"),
                ("client_lateness_p99_ms", lag.lateness_p99_ms, "ms"),
                ("client_added_ttft_p50_ms", statistics.median(added_ms), "ms"),
            ):
                print(f"{metric} {params}: {value:.3f} {unit}", flush=True)
                lines.append(result(metric, "none", params, value, unit))
    print(f"wrote {write('client_load', lines)}")


if __name__ == "__main__":
    main()
