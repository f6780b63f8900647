"""The largest of each row: the torch path, and the GPU's kernel where there is one."""

from torch import Tensor


def argmax(scores: Tensor) -> Tensor:
    """The place of each row's largest value, the first of several.

    Args:
        scores: [rows, columns] of any floating-point type; rows may be strided

    Returns:
        [rows] int64
    """
    if scores.is_cuda:
        from baton_kernels.gpu import sampling  # only a GPU's torch comes with triton

        return sampling.argmax(scores)
    return scores.argmax(-1)
