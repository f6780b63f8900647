"""What a failed call to a worker means for the request that it served."""

import grpc

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.status import carries_details, from_rpc_error
from gateway.config import Limits
from gateway.worker import Worker

_LOST = {
    grpc.StatusCode.UNAVAILABLE: "died or cannot be reached",
    # Not by us: the worker shuts down, or the request's lease ran out there.
    grpc.StatusCode.CANCELLED: "gave the request up",
}


def worker_error(error: grpc.aio.AioRpcError, worker: Worker, limits: Limits) -> BatonError:
    """Names the worker; one that was lost is avoided for a while."""
    peer = f"{worker.record.role.value} worker {worker.name}"
    if error.code() is grpc.StatusCode.UNAVAILABLE and carries_details(error):
        return from_rpc_error(error, peer)  # its own word, so it lives: a lease that ended, say
    if error.code() in _LOST:
        worker.avoid(limits.avoid_s)
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
