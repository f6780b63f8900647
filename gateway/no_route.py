"""What is said when no registered workers can serve a request."""

from collections.abc import Sequence

from baton.errors import BatonError, ErrorCode
from gateway.worker import Worker

_MAX_NAMED = 8
_RETRY_AFTER_S = 1.0


def no_route(prefill: Sequence[Worker], decode: Sequence[Worker]) -> BatonError:
    """For a model without aggregated workers and without a pair that fits.

    Args:
        prefill: all registered prefill workers.
        decode: all registered decode workers.
    """
    message = _mismatch([*prefill, *decode]) if prefill and decode else _missing(bool(prefill), bool(decode))
    return BatonError(ErrorCode.UNAVAILABLE, message, _RETRY_AFTER_S)


def _mismatch(workers: Sequence[Worker]) -> str:
    named = [f"{worker.record.role.value} {worker.name} has {_format(worker)}" for worker in workers[:_MAX_NAMED]]
    if len(workers) > _MAX_NAMED:
        named.append(f"and {len(workers) - _MAX_NAMED} more")
    return (
        f"no prefill worker can hand KV over to a decode worker: {', '.join(named)}; start them with the same "
        "--block-size and --dtype"
    )


def _format(worker: Worker) -> str:
    return f"blocks of {worker.record.block_size} tokens in {worker.record.kv_dtype or 'an unknown dtype'}"


def _missing(has_prefill: bool, has_decode: bool) -> str:
    if has_prefill:
        missing, found = "decode worker", "only prefill workers"
    elif has_decode:
        missing, found = "prefill worker", "only decode workers"
    else:
        missing, found = "prefill worker and no decode worker", "no workers at all"
    return (
        f"no {missing} is registered for this model ({found}); start one, or an aggregated worker, and send the "
        "request again"
    )
