"""Which sessions one process of the client sends, and when."""

from collections.abc import Iterator

from baton.bench.arrivals import arrival_times_s
from baton.bench.load.options import LoadOptions
from baton.bench.workloads.base import Workload


def session_numbers(options: LoadOptions, workload: Workload, process: int) -> Iterator[int]:
    """Every `num_processes`-th number from `process` on, up to what the load and the workload have."""
    limits = [limit for limit in (options.num_sessions, workload.num_sessions) if limit is not None]
    number = process
    while not limits or number < min(limits):
        yield number
        number += options.num_processes


def open_loop(options: LoadOptions, workload: Workload, process: int) -> Iterator[tuple[int, float]]:
    """Session numbers with the seconds since the start at which they are to be sent.

    Every process walks through all arrivals, so that the load is the same however many processes share it.
    """
    numbers = session_numbers(options, workload, process)
    times: Iterator[tuple[int, float]]
    if options.arrivals == "trace":
        times = ((number, workload.session_arrival_s(number)) for number in numbers)
    else:
        times = _own_times(options, numbers)
    for number, at_s in times:
        if options.duration_s is not None and at_s > options.duration_s:
            return
        yield number, at_s


def _own_times(options: LoadOptions, numbers: Iterator[int]) -> Iterator[tuple[int, float]]:
    arrivals = enumerate(arrival_times_s(options.arrivals, options.rate, options.burstiness, options.seed))
    for number in numbers:
        yield next(arrival for arrival in arrivals if arrival[0] == number)
