"""Capturing a step as a CUDA graph: what all of a model runner's graphs have in common."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Captured(NamedTuple):
    """A step in a graph, and what each replay leaves behind."""

    graph: torch.cuda.CUDAGraph
    scores: Tensor  # [rows, vocab] as the model's `scores`
    best: Tensor  # [rows] int64 token of the largest one


def capture_graph(run: Callable[[], tuple[Tensor, Tensor]], memory: Any) -> Captured:
    """Runs once, then captures on the current stream; `run` gives scores and best, `memory` is shared by graphs."""
    run()  # compiles kernels and makes library handles, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=torch.cuda.current_stream()):
        scores, best = run()
    return Captured(graph, scores, best)
