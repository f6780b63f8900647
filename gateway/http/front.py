"""What every endpoint needs of the process, and how an endpoint's answer or error becomes a response."""

import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2
from gateway.access.access import Access
from gateway.http.call import HttpCall, deadline_of, make_call, responses
from gateway.http.errors import error_response, json_response
from gateway.http.events import EventStream
from gateway.http.gone import while_wanted
from gateway.http.logprobs import TokenNames
from gateway.no_text import TokensOnlyCodec
from gateway.service import InferenceService
from gateway.text import TextCodec
from gateway.validate import checked_request_id

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
TRACE_ID_HEADER = "x-trace-id"

Answer = Response | EventStream
Endpoint = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Front:
    """One for the process."""

    service: InferenceService
    codec: TextCodec | TokensOnlyCodec
    model: str
    max_message_mib: int
    timeout_s: float  # the longest that a request may take
    access: Access

    def names(self, as_ids: bool | None) -> TokenNames:
        """How a request's answers write tokens."""
        return TokenNames(self.codec, bool(as_ids))


class Exchange:
    """One HTTP request under way."""

    def __init__(self, front: Front, request: Request, kind: str, request_id: str | None) -> None:
        """The answer's id is made of `kind`, the client's id, and what makes it unique: a retry may carry the same id.

        Raises:
            BatonError: INVALID_ARGUMENT for an id or a timeout header that cannot be.
        """
        self._front = front
        self._request = request
        given = checked_request_id(request_id or request.headers.get(REQUEST_ID_HEADER, ""))
        self.id = checked_request_id(f"{kind}-{given}-{uuid.uuid4().hex[:8]}")
        self._deadline = deadline_of(request, front.timeout_s)

    def call(self) -> HttpCall:
        """For one call of a method."""
        return make_call(self._request, self._deadline)

    def generate(self, message: inference_pb2.GenerateRequest) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """The service's answer to `message`."""
        return responses(self._front.service.Generate, message, self.call())

    def chat(self, message: inference_pb2.ChatRequest) -> AsyncGenerator[inference_pb2.ChatResponse, None]:
        """The service's answer to `message`."""
        return responses(self._front.service.Chat, message, self.call())

    async def whole(self, answer: Any) -> Response:
        """Waits for the coroutine `answer` as long as the client does."""
        body = await while_wanted(self._request.receive, self._deadline, answer)
        return json_response(body)

    async def stream(self, events: AsyncGenerator[bytes, None], ends_with_done: bool = True) -> EventStream:
        """Waits for the first event: until then a failure has a status of its own."""
        try:
            first = await while_wanted(self._request.receive, self._deadline, _next(events))
        except BaseException:
            await events.aclose()
            raise
        return EventStream(first, events, self._deadline, ends_with_done)


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


def endpoint(handler: Endpoint, access: Access | None) -> Callable[[Request], Awaitable[Any]]:
    """Errors in OpenAI's shape; the client's request id comes back. `access`: of endpoints that are not for everybody.

    Who has no key is refused before the body is read.
    """

    async def guarded(request: Request) -> Answer:
        if access is not None:
            access.caller(make_call(request, 0.0))
        return await handler(request)

    async def answer(request: Request) -> Answer:
        response = await _answer(guarded, request)
        request_id = request.headers.get(REQUEST_ID_HEADER, "")
        if request_id and request_id.isprintable() and request_id.isascii():
            response.headers[REQUEST_ID_HEADER] = request_id
        return response

    return answer


async def _answer(handler: Endpoint, request: Request) -> Answer:
    try:
        return await handler(request)
    except BatonError as error:
        return error_response(error)
    except Exception:
        logger.exception("%s failed", request.url.path)
        return error_response(BatonError(ErrorCode.INTERNAL, "internal error; the server's log has the details"))
