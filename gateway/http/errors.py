"""Errors in OpenAI's shape, with the HTTP status that each kind has there."""

import math
import re

import msgspec
from starlette.responses import Response

from baton.errors import BatonError, ErrorCode

_STATUS = {
    ErrorCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    ErrorCode.NOT_FOUND: (404, "invalid_request_error"),
    ErrorCode.FAILED_PRECONDITION: (400, "invalid_request_error"),
    ErrorCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    ErrorCode.UNIMPLEMENTED: (400, "invalid_request_error"),
    ErrorCode.UNAVAILABLE: (503, "service_unavailable_error"),
    ErrorCode.DEADLINE_EXCEEDED: (504, "timeout_error"),
    ErrorCode.CANCELLED: (499, "cancelled_error"),
    ErrorCode.UNAUTHENTICATED: (401, "invalid_request_error"),
    ErrorCode.PERMISSION_DENIED: (403, "invalid_request_error"),
    ErrorCode.INTERNAL: (500, "server_error"),
}
_RETRY = (429, 503)
_PARAM = re.compile(r"([A-Za-z_][\w.\[\]]*): ")
_CHAT_PREFIX = "prompt.chat."  # as the gRPC request names it


class BodyTooLarge(BatonError):
    """More bytes than --max-message-mib."""

    def __init__(self, max_message_mib: int) -> None:
        super().__init__(
            ErrorCode.RESOURCE_EXHAUSTED,
            f"the request's body is above the limit of {max_message_mib} MiB; shorten it, or raise --max-message-mib",
        )


class ErrorBody(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """The body of every response that is no success."""

    error: ErrorBody


def error_answer(error: BatonError) -> ErrorAnswer:
    """`code` is the machine-readable reason that gRPC's ErrorInfo has, in lower case."""
    message = error.message.removeprefix(_CHAT_PREFIX)
    named = _PARAM.match(message)
    _, kind = _status(error)
    code = "model_not_found" if error.code is ErrorCode.NOT_FOUND else str(error.reason or error.code)
    return ErrorAnswer(ErrorBody(message, kind, named[1] if named else None, code))


def error_response(error: BatonError) -> Response:
    """With Retry-After where trying again can help."""
    status, _ = _status(error)
    headers = {}
    if status in _RETRY:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(error_answer(error), status, headers)


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body` is anything that msgspec can encode."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _status(error: BatonError) -> tuple[int, str]:
    return (413, "invalid_request_error") if isinstance(error, BodyTooLarge) else _STATUS[error.code]
