"""/v1/completions: the endpoint."""

from starlette.requests import Request

from gateway.http.body import read_body
from gateway.http.completion_answers import CompletionWriter
from gateway.http.completion_body import CompletionBody, messages_of
from gateway.http.front import Answer, Exchange, Front


class Completions:
    """The endpoint."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def handle(self, request: Request) -> Answer:
        """Raises BatonError, as the service does."""
        body = await read_body(request, CompletionBody, self._front.max_message_mib)
        exchange = Exchange(self._front, request, "cmpl", body.request_id)
        messages = messages_of(body, exchange.id)
        writer = CompletionWriter(
            exchange.id, self._front.model, body, self._front.names(body.return_tokens_as_token_ids)
        )
        streams = [exchange.generate(message) for message in messages]
        if body.stream:
            return await exchange.stream(writer.events(streams))
        return await exchange.whole(writer.whole(streams))
