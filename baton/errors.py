"""Errors that cross process borders: a code that says whose fault it is and a message that says what to do."""

import enum


class ErrorCode(enum.StrEnum):
    """Named after the gRPC status that each becomes."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    FAILED_PRECONDITION = "failed_precondition"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    UNIMPLEMENTED = "unimplemented"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    INTERNAL = "internal"


class Reason(enum.StrEnum):
    """What the code alone does not tell, for whoever has to decide whether to try elsewhere; travels in ErrorInfo."""

    DRAINING = "draining"  # the worker is being stopped: it takes nothing new, or has ended what it could not finish
    ENGINE_DIED = "engine_died"
    # The gateway has not started the request (docs/admission.md).
    QUEUE_FULL = "queue_full"
    CLIENT_QUEUE_FULL = "client_queue_full"
    DEADLINE_TOO_SHORT = "deadline_too_short"
    # An API key, or its limits (docs/security.md).
    MISSING_API_KEY = "missing_api_key"
    INVALID_API_KEY = "invalid_api_key"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_CONCURRENT = "too_many_concurrent"


class BatonError(Exception):
    """A failure of one request or one command.

    `message` tells what was got, what was expected and what to change. `retry_after_s` is set when trying again later
    can help.
    """

    def __init__(
        self, code: ErrorCode, message: str, retry_after_s: float | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.reason = reason


def invalid(message: str) -> BatonError:
    """The caller's input is at fault."""
    return BatonError(ErrorCode.INVALID_ARGUMENT, message)
