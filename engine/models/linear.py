"""Matrix products with constant weights, fused with the element-wise step behind them where the device can."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Row counts for which oneDNN's blocked weights beat plain ones, by dtype (docs/log.md has the measurements).
_PACKED_ROWS = {torch.float32: range(3, 65), torch.bfloat16: range(1, 65)}


class Linear:
    """y = x W^T (+ b), and what may follow it.

    On the CPU, weights are also kept in oneDNN's blocked form, which small batches read without repacking it in every
    product, and with which an activation, a factor or a residual is applied while the output is still in registers.
    That doubles the memory for weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in]; `bias`: [out]."""
        self._weight = weight
        self._bias = bias
        self._packed_rows = range(0)
        if weight.device.type == "cpu" and torch.backends.mkldnn.is_available():
            self._packed_rows = _PACKED_ROWS.get(weight.dtype, self._packed_rows)
        if self._packed_rows:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        if x.shape[0] in self._packed_rows:
            return self._fused(x, "none")
        return F.linear(x, self._weight, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """silu(y)."""
        if x.shape[0] in self._packed_rows:
            return self._fused(x, "swish")
        return F.silu(F.linear(x, self._weight, self._bias), inplace=True)

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """y * factor; [rows, out] both. May overwrite `factor`."""
        if x.shape[0] in self._packed_rows:
            return self._fused_with(x, factor, "mul")
        return factor.mul_(F.linear(x, self._weight, self._bias))

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """y + residual; [rows, out] both. May overwrite `residual`."""
        if x.shape[0] in self._packed_rows:
            return self._fused_with(x, residual, "add")
        return residual.add_(F.linear(x, self._weight, self._bias))

    def _fused(self, x: Tensor, activation: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, activation, [], "")
        return out

    def _fused_with(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, operation)
        return out
