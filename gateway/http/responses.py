"""/v1/responses: the endpoint."""

from starlette.requests import Request

from gateway.http.body import read_body
from gateway.http.front import Answer, Exchange, Front
from gateway.http.responses_answers import ResponsesWriter
from gateway.http.responses_body import ResponsesBody, message_of


class Responses:
    """The endpoint."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def handle(self, request: Request) -> Answer:
        """Raises BatonError, as the service does."""
        body = await read_body(request, ResponsesBody, self._front.max_message_mib)
        exchange = Exchange(self._front, request, "resp", body.request_id)
        writer = ResponsesWriter(exchange.id, self._front.model, body)
        stream = exchange.chat(message_of(body, exchange.id))
        if body.stream:
            return await exchange.stream(writer.events(stream), ends_with_done=False)
        return await exchange.whole(writer.whole(stream))
