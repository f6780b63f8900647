"""What a load is: where to, what, when and how long."""

import msgspec

from baton.bench.workloads.options import WorkloadOptions
from baton.errors import invalid

ARRIVALS = ("poisson", "gamma", "fixed", "trace", "closed")


class LoadOptions(msgspec.Struct, frozen=True):
    """All that a process of the client needs to send its share."""

    target: str  # a URL, as `make_target` takes it
    model: str
    workload: WorkloadOptions
    arrivals: str = "poisson"
    rate: float = 1.0  # sessions a second; of poisson, gamma and fixed
    burstiness: float = 1.0  # of gamma
    concurrency: int = 1  # sessions at once; of closed
    num_sessions: int | None = None  # None: as many as the workload has, or as `duration_s` takes
    duration_s: float | None = None  # nothing is sent after it
    num_warmup: int = 0  # requests, other ones, sent before the load
    drain_s: float = 600.0  # what is under way when the last request is sent has so long to end
    timeout_s: float = 600.0  # of one request
    temperature: float = 0.0
    seed: int = 0
    num_processes: int = 1


def check_load(options: LoadOptions) -> None:
    """Raises:
    BatonError: INVALID_ARGUMENT for a load that never ends or has no requests, or numbers that make none.
    """
    if options.arrivals not in ARRIVALS:
        raise invalid(f"got --arrivals {options.arrivals}, expected {', '.join(ARRIVALS)}")
    if (options.arrivals == "trace") and options.workload.kind != "trace":
        raise invalid(f"got --arrivals trace with --workload {options.workload.kind}, expected --workload trace")
    if options.num_sessions is None and options.duration_s is None and options.workload.kind != "trace":
        raise invalid("got neither --requests nor --duration-s, expected one of them, or both")
    if options.num_sessions is not None and options.num_sessions < 1:
        raise invalid(f"got --requests {options.num_sessions}, expected at least 1")
    for flag, seconds in (
        ("--duration-s", options.duration_s),
        ("--drain-s", options.drain_s),
        ("--timeout-s", options.timeout_s),
    ):
        if seconds is not None and not seconds > 0:
            raise invalid(f"got {flag} {seconds:g}, expected seconds above 0")
    for flag, number in (("--concurrency", options.concurrency), ("--processes", options.num_processes)):
        if number < 1:
            raise invalid(f"got {flag} {number}, expected at least 1")
    if options.arrivals == "closed" and options.concurrency < options.num_processes:
        raise invalid(
            f"got --concurrency {options.concurrency} with --processes {options.num_processes}, expected a request for "
            "each process"
        )
    if options.num_warmup < 0:
        raise invalid(f"got --warmup {options.num_warmup}, expected 0 or more requests")
