"""The ASGI application: which path is which endpoint."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.chat import ChatCompletions
from gateway.http.completions import Completions
from gateway.http.errors import ErrorAnswer, ErrorBody, json_response
from gateway.http.front import Front, endpoint
from gateway.http.status import StatusEndpoints
from gateway.http.tokens import TokenEndpoints
from gateway.pool import Pool


def make_app(front: Front, pool: Pool) -> Starlette:
    """All endpoints of one gateway."""
    status, tokens = StatusEndpoints(front, pool), TokenEndpoints(front)
    gets = {
        "/v1/models": status.models,
        "/v1/models/{name:path}": status.model,
        "/health": status.health,
        "/ready": status.ready,
        "/version": status.version,
    }
    posts = {
        "/v1/completions": Completions(front).handle,
        "/v1/chat/completions": ChatCompletions(front).handle,
        "/tokenize": tokens.tokenize,
        "/detokenize": tokens.detokenize,
    }
    routes = [Route(path, endpoint(handler), methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, endpoint(handler), methods=["POST"]) for path, handler in posts.items()]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_endpoint})


async def _no_endpoint(request: Request, error: Exception) -> Response:
    """A path or a method that is not there."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:256]}: {error.detail}; /openapi.json lists what there is"
    body = ErrorAnswer(ErrorBody(message, "invalid_request_error", None, "not_found"))
    return json_response(body, error.status_code, dict(error.headers or {}))
