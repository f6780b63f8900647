"""What messages take, from a measured load of one request at a time: what its simulation leaves unexplained."""

import statistics
from collections.abc import Sequence

import msgspec

from baton.bench.rows import RequestRow
from baton.bench.run_folder import Run
from baton.bench.workloads.options import make_workload
from baton.errors import BatonError, ErrorCode
from simulator.cluster import ClusterOptions
from simulator.content import ContentSource
from simulator.costs import Costs, MessageCosts
from simulator.simulation import Simulation


def with_messages(costs: Costs, lone: Run, cluster: ClusterOptions) -> Costs:
    """`costs` with messages such that medians of TTFT and of the gap behind the first token are those of `lone`.

    How the way to the first token divides into its messages cannot be seen from outside: half of it goes to the three
    calls between gateway and cores, a quarter each to the client's message and to the token's way back.

    Raises:
        BatonError: FAILED_PRECONDITION when nothing was answered; as `Simulation`.
    """
    measured = [row for row in lone.rows if row.error is None and len(row.arrivals_ms) > 1]
    if not measured:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, "the load of lone requests has no answer of two tokens; record it again"
        )
    silent = msgspec.structs.replace(costs, messages=MessageCosts())
    load = lone.info.options
    workload = make_workload(load.workload, ContentSource(load.workload.seed, load.workload.vocab_size))
    rows = [record.row(0.0) for record in Simulation(cluster, silent, load, workload).run()]
    simulated = [row for row in rows if len(row.arrivals_ms) > 1]
    first_s = max(0.0, _median_s([row.ttft_ms for row in measured], [row.ttft_ms for row in simulated]))
    ready_s = max(0.0, _median_s(_first_gaps(measured), _first_gaps(simulated)))
    messages = MessageCosts(client_s=first_s / 4, call_s=first_s / 6, token_s=first_s / 4, ready_s=ready_s)
    return msgspec.structs.replace(costs, messages=messages)


def _first_gaps(rows: Sequence[RequestRow]) -> list[float]:
    return [row.gaps_ms[0] for row in rows]


def _median_s(measured_ms: Sequence[float], simulated_ms: Sequence[float]) -> float:
    return (statistics.median(measured_ms) - statistics.median(simulated_ms)) / 1e3
