"""Small tensors on their way to the device, without waiting for what it does."""

import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def upload(values: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]], device: torch.device) -> Tensor:
    """[values] int64 on `device`. A copy from pageable memory would wait for all work before it."""
    # By way of an array, a list takes a quarter of the time that torch.tensor takes.
    packed = values if isinstance(values, np.ndarray) else np.asarray(array.array("q", values))
    host = torch.from_numpy(packed)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def download(values: Tensor) -> Tensor:
    """A copy on the host, whose contents are there once the work enqueued so far has ended."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
