"""One HTTP request as the gRPC service's methods see a call: metadata, deadline, what is to be done at its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from baton.errors import invalid

TIMEOUT_HEADER = "x-request-timeout-s"
_HEADERS = ("traceparent", "tracestate", "authorization")

T = TypeVar("T")


class HttpCall:
    """Stands where `grpc.aio.ServicerContext` does; has what the service uses of it."""

    def __init__(self, metadata: list[tuple[str, str]], deadline: float, host: str) -> None:
        """`deadline`: on the event loop's clock. `host`: the client's."""
        self._metadata = metadata
        self._host = host
        self._deadline = deadline
        self._callbacks: list[Callable[[Any], None]] = []

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The caller's trace context and API key."""
        return self._metadata

    def peer(self) -> str:
        """The client's address, without its port."""
        return self._host

    def time_remaining(self) -> float:
        """Seconds; 0 when the deadline has passed."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called when the request is over, however it ends."""
        self._callbacks.append(callback)

    def done(self) -> None:
        """The request is over. Idempotent."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def deadline_of(request: Request, longest_s: float) -> float:
    """On the event loop's clock: what the client's header says, at most `longest_s` from now.

    Raises:
        BatonError: INVALID_ARGUMENT for a header that is no number of seconds above 0.
    """
    text = request.headers.get(TIMEOUT_HEADER)
    timeout_s = longest_s
    if text is not None:
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = 0.0
        if not timeout_s > 0:
            raise invalid(f"{TIMEOUT_HEADER}: got {text[:32]!r}, expected seconds above 0; correct the header")
    return asyncio.get_running_loop().time() + min(timeout_s, longest_s)


def make_call(request: Request, deadline: float) -> HttpCall:
    """One for each call of a method; several can serve one request."""
    metadata = [(name, request.headers[name]) for name in _HEADERS if name in request.headers]
    return HttpCall(metadata, deadline, request.client.host if request.client else "")


async def responses(
    method: Callable[[Any, Any], AsyncIterator[T]], message: Any, call: HttpCall
) -> AsyncGenerator[T, None]:
    """What a streaming method answers; the call is over when the iteration is."""
    try:
        async for response in method(message, call):
            yield response
    finally:
        call.done()
