"""What is said when no registered workers can serve a request."""

from collections.abc import Sequence
from typing import NamedTuple

from baton.errors import BatonError, ErrorCode
from baton.types import Role
from gateway.worker import Worker

_MAX_NAMED = 8
_RETRY_AFTER_S = 1.0


class Gone(NamedTuple):
    """A worker that was here a moment ago."""

    name: str
    role: Role
    seconds: float  # since it left


def no_route(prefill: Sequence[Worker], decode: Sequence[Worker], gone: Sequence[Gone]) -> BatonError:
    """For a model without aggregated workers and without decode workers that fit.

    Args:
        prefill: all registered prefill workers.
        decode: all registered decode workers.
        gone: workers that have left lately, the newest first.
    """
    if prefill and decode:
        message = _mismatch([*prefill, *decode])
    else:
        message = _missing(bool(prefill), [worker for worker in gone if worker.role is not Role.PREFILL])
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


def _missing(has_prefill: bool, gone: Sequence[Gone]) -> str:
    missing, found = ("decode worker", "only prefill workers")
    if not has_prefill:
        missing, found = "prefill worker and no decode worker", "no workers at all"
    if gone:
        last = gone[0]
        return (
            f"no {missing} serves this model now: {last.role.value} worker {last.name} has stopped or died "
            f"{last.seconds:.0f} s ago and no other is registered; send the request again when one is back"
        )
    return (
        f"no {missing} is registered for this model ({found}); start one, or an aggregated worker, and send the "
        "request again"
    )
