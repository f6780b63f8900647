"""/tokenize and /detokenize, as vLLM has them."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from baton.errors import invalid
from baton.rpc import inference_pb2
from gateway.http.body import read_body
from gateway.http.chat_messages import Documents, Json, Messages, Tools, chat_prompt
from gateway.http.errors import json_response
from gateway.http.fields import TokenId
from gateway.http.front import Answer, Exchange, Front


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A prompt or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None | UnsetType = UNSET


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Token ids."""

    tokens: Annotated[list[TokenId], Meta(max_length=1 << 20)]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    """Their text."""

    prompt: str


class TokenEndpoints:
    """Both endpoints."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def tokenize(self, request: Request) -> Answer:
        """Raises BatonError, as the service does."""
        body = await read_body(request, TokenizeBody, self._front.max_message_mib)
        message = inference_pb2.TokenizeRequest(model=body.model or "", return_token_strs=bool(body.return_token_strs))
        if body.add_special_tokens is not None:
            message.add_special_tokens = body.add_special_tokens
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt: got neither or both of prompt and messages, expected one of them; change that")
        if body.messages is not None:
            message.chat.CopyFrom(chat_prompt(body.messages, body))
        else:
            message.text = body.prompt or ""
        response = await self._front.service.Tokenize(message, self._call(request))
        strings = list(response.token_strs) if body.return_token_strs else UNSET
        ids = list(response.token_ids)
        return json_response(TokenizeAnswer(len(ids), response.max_model_len, ids, strings))

    async def detokenize(self, request: Request) -> Answer:
        """Raises BatonError, as the service does."""
        body = await read_body(request, DetokenizeBody, self._front.max_message_mib)
        message = inference_pb2.DetokenizeRequest(model=body.model or "", token_ids=body.tokens)
        response = await self._front.service.Detokenize(message, self._call(request))
        return json_response(DetokenizeAnswer(response.text))

    def _call(self, request: Request) -> Any:
        return Exchange(self._front, request, "tok", None).call()
