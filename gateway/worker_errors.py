"""What a failed call to a worker means for the request that it served."""

import grpc

from baton.errors import BatonError, ErrorCode, Reason
from baton.grpc_util.status import carries_details, from_rpc_error
from baton.types import WorkerRef
from gateway.config import Limits
from gateway.worker import Worker

_LOST = {
    grpc.StatusCode.UNAVAILABLE: "died or cannot be reached",
    # Not by us: the worker shuts down, or the request's lease ran out there.
    grpc.StatusCode.CANCELLED: "gave the request up",
}


class WorkerFailure(BatonError):
    """A worker has failed an attempt; another one may not."""

    def __init__(self, error: BatonError, worker: WorkerRef, lost: bool, at_work: bool) -> None:
        """`lost`: the worker itself is gone. `at_work`: it was computing for this request."""
        super().__init__(error.code, error.message, error.retry_after_s, error.reason)
        self.worker = worker
        self.lost = lost
        self.died_at_work = lost and at_work


def worker_error(error: grpc.aio.AioRpcError, worker: Worker, limits: Limits, at_work: bool = False) -> WorkerFailure:
    """Names the worker; one that was lost or that takes nothing new is avoided for a while.

    `at_work`: whether the worker was computing for the request.
    """
    found = _describe(error, worker, limits)
    broken = error.code() is grpc.StatusCode.UNAVAILABLE and not carries_details(error)
    lost = broken or found.reason is Reason.ENGINE_DIED
    if lost or found.reason is Reason.DRAINING or error.code() is grpc.StatusCode.CANCELLED:
        worker.avoid(limits.avoid_s)
    return WorkerFailure(found, worker.ref, lost, at_work)


def _describe(error: grpc.aio.AioRpcError, worker: Worker, limits: Limits) -> BatonError:
    peer = f"{worker.record.role.value} worker {worker.name}"
    if error.code() is grpc.StatusCode.UNAVAILABLE and carries_details(error):
        return from_rpc_error(error, peer)  # its own word: a lease that ended, say
    if error.code() in _LOST:
        return BatonError(
            ErrorCode.UNAVAILABLE,
            f"{peer} {_LOST[error.code()]} ({error.details()}); send the request again",
            retry_after_s=limits.avoid_s,
        )
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return BatonError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"the request's deadline passed while {peer} was at work; send it again with a later deadline",
        )
    return from_rpc_error(error, peer)
