"""Between `BatonError` and gRPC statuses with machine-readable details."""

from typing import Any, NoReturn, cast

import grpc
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from baton.errors import BatonError, ErrorCode, Reason

DOMAIN = "baton"


def status_code(code: ErrorCode) -> grpc.StatusCode:
    """The gRPC status of the same name."""
    return grpc.StatusCode[code.name]


def to_status(error: BatonError) -> status_pb2.Status:
    """google.rpc.Status with ErrorInfo, and RetryInfo where trying again later can help."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=(error.reason or error.code).name, domain=DOMAIN))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: BatonError) -> NoReturn:
    """Ends the call with the error's status and details."""
    status = rpc_status.to_status(to_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort always raises")


def carries_details(error: grpc.aio.AioRpcError) -> bool:
    """Whether the peer's code has ended the call, rather than the transport."""
    return rpc_status.from_call(cast(grpc.Call, error)) is not None


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> BatonError:
    """What a failed call to `peer` means for the request it served."""
    code = ErrorCode.__members__.get(error.code().name, ErrorCode.INTERNAL)
    if error.code() is grpc.StatusCode.UNKNOWN:
        code = ErrorCode.INTERNAL
    retry_after_s = None
    status = rpc_status.from_call(cast(grpc.Call, error))
    reason = None
    for detail in status.details if status else ():
        retry, info = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        elif detail.Unpack(info):
            reason = Reason.__members__.get(info.reason)
    return BatonError(code, f"{peer}: {error.details()}", retry_after_s, reason)
