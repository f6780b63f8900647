"""Server-sent events: one `data:` line a chunk, `[DONE]` at the end."""

import logging
from collections.abc import AsyncGenerator

import msgspec
from starlette.types import Receive, Scope, Send

from baton.errors import BatonError, ErrorCode
from gateway.http.errors import error_answer
from gateway.http.gone import while_wanted

logger = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"


def event(chunk: object, name: str = "") -> bytes:
    """One event; `name` for streams whose events have one."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, msgspec.json.encode(chunk))


class EventStream:
    """A response whose first event is there already, so that what failed before has a status of its own."""

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], deadline: float, ends_with_done: bool = True
    ) -> None:
        """Closes `rest`, which must be an async generator, in the end."""
        self._first = first
        self._rest = rest
        self._deadline = deadline
        self._end = _DONE if ends_with_done else b""
        self.headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A client that leaves ends the work; an error after the first event becomes an event."""
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"} | self.headers
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        try:
            await while_wanted(receive, self._deadline, self._send_all(send))
        except Exception as error:
            if isinstance(error, BatonError) and error.code is ErrorCode.CANCELLED:
                return
            await _send_body(send, event(error_answer(_told(error))) + self._end, more=False)
        finally:
            await self._rest.aclose()

    async def _send_all(self, send: Send) -> None:
        await _send_body(send, self._first)
        async for data in self._rest:
            await _send_body(send, data)
        await _send_body(send, self._end, more=False)


async def _send_body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def _told(error: Exception) -> BatonError:
    """Nothing of our own failures leaks."""
    if isinstance(error, BatonError):
        return error
    logger.error("a stream failed", exc_info=error)
    return BatonError(ErrorCode.INTERNAL, "internal error; the server's log has the details")
