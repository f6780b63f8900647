"""A load's summary as result lines: one JSON object for each figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from baton.bench.load.options import LoadOptions
from baton.bench.percentiles import SHARES
from baton.bench.provenance import result
from baton.bench.slo import Slo
from baton.bench.summary import Summary

# Of latencies, behind a prefix such as "serve": the names that docs and other results use.
_NAMES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "gap": "maxgap_ms", "e2e": "e2e_ms"}


def load_params(options: LoadOptions) -> dict[str, Any]:
    """What was varied, as a result's params."""
    load = options.workload
    params: dict[str, Any] = {"workload": load.kind, "arrivals": options.arrivals}
    if options.arrivals == "closed":
        params["concurrency"] = options.concurrency
    elif options.arrivals != "trace":
        params["rate"] = options.rate
    if options.arrivals == "gamma":
        params["burstiness"] = options.burstiness
    if load.kind == "trace":
        scale = load.scale
        return params | {"trace": load.trace.rpartition("/")[2], "speed": scale.speed, "length_scale": scale.lengths}
    params |= {"input": load.input_tokens, "output": load.output_tokens}
    if load.length_spread:
        params["spread"] = load.length_spread
    kinds: dict[str, dict[str, Any]] = {
        "shared-prefix": {"prefix": load.prefix_tokens, "prefixes": load.num_prefixes},
        "multi-turn": {"prefix": load.prefix_tokens, "turns": load.num_turns, "think_s": load.think_s},
        "long-document": {"document": load.document_tokens, "questions": load.num_questions},
    }
    return params | kinds.get(load.kind, {})


def result_lines(
    summary: Summary, options: LoadOptions, slo: Slo | None, prefix: str, labels: Mapping[str, str], lag: str | None
) -> Sequence[dict[str, Any]]:
    """Figures that do not exist (no answer, no SLO) have no line. `lag`: what `bottleneck` said, kept in each line."""
    params = load_params(options) | dict(labels)
    more = {"doubt": lag} if lag else {}
    lines = []

    def add(metric: str, extra: dict[str, Any], value: float | None, unit: str) -> None:
        if value is not None and not math.isnan(value):
            lines.append((metric, params | extra, value, unit))

    for latency, name in _NAMES.items():
        for percentile in SHARES:
            add(f"{prefix}_{name}", {"percentile": percentile}, summary.latencies_ms[latency][percentile], "ms")
    add("throughput_req_s", {}, summary.requests_s, "req/s")
    add("throughput_in_tok_s", {}, summary.input_tok_s, "tok/s")
    add("throughput_out_tok_s", {}, summary.output_tok_s, "tok/s")
    add("goodput_req_s", {"slo": str(slo)}, summary.goodput_req_s, "req/s")
    add("slo_share", {"slo": str(slo)}, summary.good_share, "ratio")
    for kind, count in summary.errors.items():
        add(f"{prefix}_errors", {"kind": kind}, count, "requests")
    if not lines:
        return []
    common = result("", options.model, {}, 0.0, "", **more)
    return [
        common | {"metric": metric, "params": extra, "value": round(value, 3), "unit": unit}
        for metric, extra, value, unit in lines
    ]


def encode_lines(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON lines."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
