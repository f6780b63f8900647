"""How well the simulator predicts a CPU stack: fitted to two loads of it, compared with three others.

`python benchmarks/simulator/validate.py` on a machine that does nothing else; writes
benchmarks/results/simulator_validation.jsonl and docs/img/simulator_validation.svg.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from record import result, write  # noqa: E402

from baton.bench.costs import kv_bytes_per_token  # noqa: E402
from baton.bench.load.fleet import LoadResult, ask_target, run_load  # noqa: E402
from baton.bench.load.options import LoadOptions  # noqa: E402
from baton.bench.plot.axis import Axis  # noqa: E402
from baton.bench.plot.chart import Chart  # noqa: E402
from baton.bench.run_folder import Run, describe  # noqa: E402
from baton.bench.summary import Summary, summarize  # noqa: E402
from baton.bench.workloads.options import WorkloadOptions, make_workload  # noqa: E402
from baton.config import resolve  # noqa: E402
from baton.fetch.cache import resolve_model  # noqa: E402
from baton.local import LocalStack  # noqa: E402
from baton.model_spec import load_model_spec  # noqa: E402
from engine.config import SchedulerConfig  # noqa: E402
from engine.step_log import read_step_log  # noqa: E402
from simulator.cluster import ClusterOptions  # noqa: E402
from simulator.content import ContentSource  # noqa: E402
from simulator.costs import Costs, write_costs  # noqa: E402
from simulator.fitting.from_logs import costs_from_logs  # noqa: E402
from simulator.fitting.messages import with_messages  # noqa: E402
from simulator.simulation import Simulation  # noqa: E402

POOL_BYTES = 1 << 30
SIZES = SchedulerConfig()
LIMITS = {"p50": 0.10, "p99": 0.25, "": 0.10}  # of the relative error, as issue 8 asks


class Figure(NamedTuple):
    """One figure of both."""

    workload: str
    metric: str
    percentile: str
    predicted: float
    measured: float
    unit: str

    @property
    def error(self) -> float:
        """Relative to the measured value."""
        return self.predicted / self.measured - 1


def loads(target: str, model: str, seconds: float) -> tuple[LoadOptions, LoadOptions, dict[str, LoadOptions]]:
    """Lone requests, the load that steps are fitted to, and those that are predicted."""

    def load(kind: str, seed: int, **more: Any) -> LoadOptions:
        lengths = {name: more.pop(name) for name in ("input_tokens", "output_tokens", "length_spread") if name in more}
        workload = WorkloadOptions(kind=kind, seed=seed, prefix_tokens=192, num_turns=3, think_s=0.5, **lengths)
        return LoadOptions(target, model, workload, seed=seed, duration_s=seconds, **more)

    lone = load("random", 1, arrivals="closed", concurrency=1, input_tokens=300, output_tokens=24, length_spread=0.6)
    fitted = load("random", 2, arrivals="closed", concurrency=5, input_tokens=300, output_tokens=40, length_spread=0.9)
    return (
        lone,
        fitted,
        {
            "random": load("random", 3, arrivals="closed", concurrency=4, input_tokens=256, output_tokens=48),
            "shared-prefix": load("shared-prefix", 4, rate=1.2, input_tokens=160, output_tokens=48, length_spread=0.5),
            "multi-turn": load("multi-turn", 5, rate=0.5, input_tokens=120, output_tokens=32, length_spread=0.3),
        },
    )


def simulated(costs: Costs, load: LoadOptions, cluster: ClusterOptions) -> Summary:
    """Of the same load."""
    workload = make_workload(load.workload, ContentSource(load.workload.seed, load.workload.vocab_size))
    records = Simulation(cluster, costs, load, workload).run()
    return summarize([record.row(costs.messages.token_s) for record in records], None)


def compare(workload: str, predicted: Summary, measured: Summary) -> list[Figure]:
    """What the issue asks for, and p99."""
    found = [Figure(workload, "throughput_out_tok_s", "", predicted.output_tok_s, measured.output_tok_s, "tok/s")]
    for latency in ("ttft", "itl"):
        for percentile in ("p50", "p99"):
            values = (summary.latencies_ms[latency][percentile] for summary in (predicted, measured))
            found.append(Figure(workload, f"sim_{latency}_ms", percentile, *values, "ms"))
    return found


def plot(figures: Sequence[Figure]) -> str:
    """Predicted over measured: on the line they are equal."""
    both = [value for figure in figures for value in (figure.predicted, figure.measured)]
    axes = (Axis(f"{name}, ms or tok/s", both, log=True) for name in ("measured", "predicted"))
    chart = Chart("The simulator beside a CPU stack", *axes)
    chart.line("equal", [(min(both), min(both)), (max(both), max(both))], dashed=True)
    for metric in dict.fromkeys(figure.metric for figure in figures):
        own = [figure for figure in figures if figure.metric == metric]
        texts = [f"{figure.workload} {figure.percentile}" for figure in own]
        chart.points(metric, [(figure.measured, figure.predicted) for figure in own], texts)
    return chart.svg()


def main() -> int:
    """1 when a prediction is out of its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--keep", type=Path, help="folder for the step logs and the costs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures, costs = validate(options.keep or Path(temporary), options.seconds)
    lines = []
    for figure in figures:
        limit = LIMITS[figure.percentile]
        verdict = "ok" if abs(figure.error) <= limit else f"above {limit:.0%}"
        print(
            f"{figure.workload:14} {figure.metric:21} {figure.percentile:4} predicted {figure.predicted:9.2f} measured "
            f"{figure.measured:9.2f} {figure.unit:6} {figure.error:+6.1%}  {verdict}"
        )
        params = {"workload": figure.workload} | ({"percentile": figure.percentile} if figure.percentile else {})
        baseline = {"name": "measured", "value": round(figure.measured, 3)}
        lines.append(result(figure.metric, "smollm2-135m", params, figure.predicted, figure.unit, baseline=baseline))
    print(costs.source)
    if not options.dry:
        write("simulator_validation", lines)
        (ROOT / "docs" / "img" / "simulator_validation.svg").write_text(plot(figures))
    return int(any(not abs(figure.error) <= LIMITS[figure.percentile] for figure in figures))


def validate(folder: Path, seconds: float) -> tuple[list[Figure], Costs]:
    """Measures, fits and predicts."""
    stack_options, _ = resolve({"port": 0, "num_threads": 1, "step_log": str(folder), "kv_cache_bytes": POOL_BYTES})
    with LocalStack(stack_options) as stack:
        target = f"grpc://{stack.gateway_address}"
        served = ask_target(LoadOptions(target, "", WorkloadOptions()))
        lone, fitted, predicted = loads(target, served.model, seconds)
        measured: dict[str, LoadResult] = {}
        for name, load in {"lone": lone, "fitted": fitted, **predicted}.items():
            print(f"measuring {name} for {seconds:g} s", flush=True)
            measured[name] = run_load(load)
    logs = {file.stem: read_step_log(file) for file in sorted(folder.glob("*.jsonl"))}
    by_role = ([log for name, log in logs.items() if name.startswith(role)] for role in ("prefill", "decode"))
    spec = load_model_spec(resolve_model(stack_options.model))
    token_bytes = kv_bytes_per_token(spec, 4)
    cluster = ClusterOptions(
        num_blocks=POOL_BYTES // (token_bytes * 16),
        max_model_len=spec.max_position_embeddings,
        prefill=SIZES,
        decode=SIZES,
    )
    costs = costs_from_logs(*by_role, token_bytes)
    info = describe(lone, measured["lone"], None, {}, [])
    costs = with_messages(costs, Run(info, measured["lone"].rows), cluster)
    write_costs(folder / "costs.json", costs)
    figures = []
    for name, load in predicted.items():
        figures += compare(name, simulated(costs, load, cluster), summarize(measured[name].rows, None))
    return [figure for figure in figures if math.isfinite(figure.predicted) and figure.measured], costs


if __name__ == "__main__":
    sys.exit(main())
