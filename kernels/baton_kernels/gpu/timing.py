"""How long work takes on a GPU, without what launching it costs: replays of a captured graph between two events."""

import statistics
from collections.abc import Callable

import torch

_ROUNDS = 5


def graph_ms(work: Callable[[], object], target_ms: float = 20.0) -> float:
    """Milliseconds of one run of `work`: the median of several rounds of about `target_ms` each.

    Args:
        work: graph-safe; it is run a few times outside of the graph first, which compiles what it needs
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    once = _replays_ms(graph, 1)
    repeats = max(1, min(100, int(target_ms / max(once, 1e-3))))
    return statistics.median(_replays_ms(graph, repeats) for _ in range(_ROUNDS))


def _replays_ms(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return elapsed_ms / repeats
