"""Every endpoint: its path, what handles it, what it takes and gives."""

from dataclasses import dataclass

import msgspec

from gateway.http.chat import ChatCompletions
from gateway.http.chat_answers import ChatAnswer
from gateway.http.chat_body import ChatBody
from gateway.http.completion_answers import CompletionAnswer
from gateway.http.completion_body import CompletionBody
from gateway.http.completions import Completions
from gateway.http.front import Endpoint, Front
from gateway.http.responses import Responses
from gateway.http.responses_answers import ResponseAnswer
from gateway.http.responses_body import ResponsesBody
from gateway.http.status import Health, ModelCard, ModelList, StatusEndpoints, Version
from gateway.http.tokens import DetokenizeAnswer, DetokenizeBody, TokenEndpoints, TokenizeAnswer, TokenizeBody
from gateway.pool import Pool


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One of them."""

    path: str
    summary: str
    handler: Endpoint
    answer: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None  # None: asked with GET
    public: bool = False  # needs no API key
    streams: bool = False  # events instead of the answer, where the body asks for them

    @property
    def method(self) -> str:
        """Of HTTP."""
        return "GET" if self.body is None else "POST"


def make_endpoints(front: Front, pool: Pool) -> list[EndpointSpec]:
    """All endpoints of one gateway."""
    status, tokens = StatusEndpoints(front, pool), TokenEndpoints(front)
    completions, chats, responses = Completions(front), ChatCompletions(front), Responses(front)
    return [
        EndpointSpec(
            "/v1/completions", "Continue prompts", completions.handle, CompletionAnswer, CompletionBody, streams=True
        ),
        EndpointSpec("/v1/chat/completions", "Answer a conversation", chats.handle, ChatAnswer, ChatBody, streams=True),
        EndpointSpec(
            "/v1/responses", "Answer a conversation", responses.handle, ResponseAnswer, ResponsesBody, streams=True
        ),
        EndpointSpec("/tokenize", "Text or chat to token ids", tokens.tokenize, TokenizeAnswer, TokenizeBody),
        EndpointSpec("/detokenize", "Token ids to text", tokens.detokenize, DetokenizeAnswer, DetokenizeBody),
        EndpointSpec("/v1/models", "The served models", status.models, ModelList),
        EndpointSpec("/v1/models/{name}", "One served model", status.model, ModelCard),
        EndpointSpec("/health", "Whether the process answers", status.health, Health, public=True),
        EndpointSpec("/ready", "Whether requests can be served", status.ready, Health, public=True),
        EndpointSpec("/version", "Of the package", status.version, Version, public=True),
    ]
