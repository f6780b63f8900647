"""Matrix products with constant weights, fused with the element-wise step behind them where the device can."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_kernels import native
from baton_kernels.linear import MAX_ROWS, Norm
from engine.models.norm import RmsNorm

_NORMED_INPUTS = 2048  # up to here every program of a product norms the one row anew faster than a launch does it
_FEW_ROWS = 64  # up to here packed weights beat plain ones (docs/log.md)


class Linear:
    """y = x W^T (+ b), and what may follow it.

    On a GPU, products of few rows in half precision go through our own kernel, which reads the weights once.

    On the CPU, weights without a bias are also kept packed, which doubles their memory: small batches then stream them
    once without rearranging them in every product, and an activation, a factor or a residual is applied while the
    output is still at hand. float32 is packed for our own kernel (with AVX-512), bfloat16 for oneDNN's.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in]; `bias`: [out]."""
        self._weight = weight
        self._bias = bias
        self._few_rows: Callable[[Tensor, str, Tensor | None], Tensor] | None = None
        self._norms_too = False
        self._most_rows = _FEW_ROWS
        if bias is None and native.linear_usable(weight):
            self._packed = native.pack_linear(weight)
            self._few_rows = self._native
        elif bias is None and weight.device.type == "cpu" and weight.dtype is torch.bfloat16:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
            self._few_rows = self._onednn
        elif bias is None and weight.is_cuda and weight.dtype is not torch.float32:
            self._few_rows, self._most_rows, self._norms_too = self._on_gpu, MAX_ROWS, weight.shape[1] <= _NORMED_INPUTS

    def __call__(self, x: Tensor, norm: RmsNorm | None = None) -> Tensor:
        """[rows, in] to [rows, out]; of the normed `x` where a norm is given."""
        if norm:
            if self._norms_too and x.shape[0] == 1:
                return self._on_gpu(x, "nothing", None, norm.parts)
            x = norm(x)
        if self._few_rows and x.shape[0] <= self._most_rows:
            return self._few_rows(x, "nothing", None)
        return F.linear(x, self._weight, self._bias)

    def gated(self, x: Tensor, norm: RmsNorm | None = None) -> Tensor:
        """silu of the first half of y times the second half (Shazeer, 2020); on a GPU, without a bias."""
        from baton_kernels.gpu import layers

        if norm:
            if self._norms_too and x.shape[0] == 1:
                return self._on_gpu(x, "gated", None, norm.parts)
            x = norm(x)
        if self._few_rows and x.shape[0] <= self._most_rows:
            return self._few_rows(x, "gated", None)
        return layers.silu_mul(F.linear(x, self._weight))

    def silu(self, x: Tensor) -> Tensor:
        """silu(y)."""
        if self._few_rows and x.shape[0] <= self._most_rows:
            return self._few_rows(x, "silu", None)
        return F.silu(F.linear(x, self._weight, self._bias), inplace=True)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """gelu(y) in its approximation by tanh (Hendrycks and Gimpel, 2016)."""
        return F.gelu(self(x), approximate="tanh")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """y * factor; [rows, out] both. May overwrite `factor`."""
        if self._few_rows and x.shape[0] <= self._most_rows:
            return self._few_rows(x, "times", factor)
        return factor.mul_(F.linear(x, self._weight, self._bias))

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """y + residual; [rows, out] both. May overwrite `residual`."""
        if self._few_rows and x.shape[0] <= self._most_rows:
            return self._few_rows(x, "plus", residual)
        if residual.is_cuda and self._bias is None:  # cuBLAS adds while it holds the product
            return residual.addmm_(x, self._weight.t())
        return residual.add_(F.linear(x, self._weight, self._bias))

    def _on_gpu(self, x: Tensor, follow_up: str, other: Tensor | None, norm: Norm | None = None) -> Tensor:
        from baton_kernels.gpu import linear
        from baton_kernels.gpu.linear_configs import best_config

        if follow_up in ("silu", "times"):  # nobody needs them fast: what is gated is one product here
            y = F.linear(x, self._weight)
            return F.silu(y, inplace=True) if other is None else other.mul_(y)
        gated = follow_up == "gated"
        num_out = self._weight.shape[0] // (2 if gated else 1)
        config = best_config(x.device, x.shape[0], num_out, x.shape[1], gated)
        workspace = linear.workspace_on(x.device)
        return linear.fused_linear(x.contiguous(), self._weight, workspace, norm, other, gated, config)

    def _native(self, x: Tensor, follow_up: str, other: Tensor | None) -> Tensor:
        return native.linear(x, self._packed, follow_up, other)

    def _onednn(self, x: Tensor, follow_up: str, other: Tensor | None) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise
        out: Tensor
        if other is None:
            out = product(x, self._packed, None, {"nothing": "none", "silu": "swish"}[follow_up], [], "")
        else:
            out = product.binary(x, other, self._packed, None, {"times": "mul", "plus": "add"}[follow_up])
        return out
