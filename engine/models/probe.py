"""A trial of a freshly loaded model: its own hidden states out of the paged pool, however the tokens are cut.

Modelling code that is not ours can do anything: keep state of its own, count positions by itself, attend in some layers
only, expect more of attention than it says. What it does shows when a few tokens are computed by its own attention, in
one step, and again in several.
"""

import torch
from torch import Tensor

from baton.errors import BatonError, ErrorCode
from baton.model_spec import ModelSpec
from baton_kernels.attention import SequenceSlice, plan_batch
from engine.models.transformers_model import TransformersModel

_BLOCK_SIZE = 8
_TOKENS = 12  # more than a block
_BLOCKS = (1, 2)
# Of the hidden states' norm. Rounding makes 1e-6 and 1e-2 of it; a model that mixes up tokens is off by tenths.
_TOLERANCE = {torch.float32: 1e-3}
_COARSE_TOLERANCE = 0.1


@torch.inference_mode()
def check_model(model: TransformersModel, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
    """Passes when the model computes the same, cut into steps and beside other sequences, out of the pool alone.

    Raises:
        BatonError: UNIMPLEMENTED with what differs.
    """
    pool = torch.zeros(8, spec.num_kv_heads, spec.num_layers, 2, _BLOCK_SIZE, spec.head_dim, dtype=dtype, device=device)
    ids = [(7 * index + 3) % spec.vocab_size for index in range(_TOKENS)]
    whole = _run(model, pool, [(ids, 0, _BLOCKS)])
    filled = pool.abs().amax(dim=(1, 3, 4, 5)) > 0  # [blocks, layers]
    if missing := [layer for layer, used in enumerate(filled[list(_BLOCKS)].all(dim=0).tolist()) if not used]:
        raise _unserved(spec, f"{len(missing)} of its {spec.num_layers} layers, such as layer {missing[0]}, keep no KV")
    own = model.own_forward(torch.tensor(ids, device=device))
    if own is not None:
        _check_same(spec, whole, own, "it computes other hidden states than by its own attention")
    other = ids[::-1]
    pool.zero_()
    parts = [
        _run(model, pool, [(other[:5], 0, (4, 5)), (ids[:7], 0, _BLOCKS)])[5:],
        _run(model, pool, [(ids[: _TOKENS - 1], 7, _BLOCKS), (other[:6], 5, (4, 5))])[:-1],
        _run(model, pool, [(other[:7], 6, (4, 5)), (ids, _TOKENS - 1, _BLOCKS)])[1:],
    ]
    _check_same(spec, torch.cat(parts), whole, "in steps, it computes other hidden states than at once")
    logits = model.logits(whole[-1:])
    if logits.shape != (1, spec.vocab_size) or not logits.isfinite().all():
        raise _unserved(spec, f"got logits of shape {tuple(logits.shape)}, expected 1 x {spec.vocab_size}, all finite")


def _check_same(spec: ModelSpec, got: Tensor, expected: Tensor, problem: str) -> None:
    error = float((got - expected).float().norm() / expected.float().norm())
    if not error < _TOLERANCE.get(got.dtype, _COARSE_TOLERANCE):  # also for NaN
        raise _unserved(spec, f"{problem} (off by {error:.2g} of their norm)")


def _run(model: TransformersModel, pool: Tensor, parts: list[tuple[list[int], int, tuple[int, ...]]]) -> Tensor:
    """Each part: a sequence's ids up to here, where the new ones start, its blocks. The new tokens' hidden states."""
    return model.forward(
        torch.tensor([token for ids, start, _ in parts for token in ids[start:]], device=pool.device),
        torch.tensor([position for ids, start, _ in parts for position in range(start, len(ids))], device=pool.device),
        pool,
        plan_batch([SequenceSlice(start, len(ids) - start, blocks) for ids, start, blocks in parts], pool),
    )


def _unserved(spec: ModelSpec, reason: str) -> BatonError:
    return BatonError(
        ErrorCode.UNIMPLEMENTED, f"{spec.architecture} from {spec.path} cannot run on paged attention: {reason}"
    )
