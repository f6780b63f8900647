"""/v1/chat/completions: the endpoint."""

from starlette.requests import Request

from gateway.http.body import read_body
from gateway.http.chat_answers import ChatWriter
from gateway.http.chat_body import ChatBody, message_of
from gateway.http.front import Answer, Exchange, Front


class ChatCompletions:
    """The endpoint."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def handle(self, request: Request) -> Answer:
        """Raises BatonError, as the service does."""
        body = await read_body(request, ChatBody, self._front.max_message_mib)
        exchange = Exchange(self._front, request, "chatcmpl", body.request_id)
        message = message_of(body, exchange.id)
        names = self._front.names(body.return_tokens_as_token_ids)
        writer = ChatWriter(exchange.id, self._front.model, body, names)
        stream = exchange.chat(message)
        if body.stream:
            return await exchange.stream(writer.events(stream))
        return await exchange.whole(writer.whole(stream))
