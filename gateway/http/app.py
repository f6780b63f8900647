"""The ASGI application: which path is which endpoint."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.tls import Tls
from gateway.http.endpoints import make_endpoints
from gateway.http.errors import ErrorAnswer, ErrorBody, json_response
from gateway.http.front import Endpoint, Front, endpoint
from gateway.http.openapi import make_document
from gateway.http.page import PageEndpoints
from gateway.pool import Pool


def make_app(front: Front, pool: Pool, trace_store: str | None, tls: Tls | None = None) -> Starlette:
    """All endpoints of one gateway, the document that describes them, and the page for people.

    Args:
        trace_store, tls: as in `PageEndpoints`
    """
    endpoints = make_endpoints(front, pool)
    document = make_document(endpoints)

    async def openapi(request: Request) -> Response:
        return json_response(document)

    # Names of models have slashes.
    routes = [
        Route(
            spec.path.replace("{name}", "{name:path}"),
            endpoint(spec.handler, None if spec.public else front.access),
            methods=[spec.method],
        )
        for spec in endpoints
    ]
    page = PageEndpoints(trace_store, tls)
    gets: dict[str, Endpoint] = {
        "/openapi.json": openapi,
        "/": page.page,
        "/page.js": page.script,
    }
    routes += [Route(path, endpoint(handler, None), methods=["GET"]) for path, handler in gets.items()]
    routes.append(Route("/traces/{trace_id}", endpoint(page.trace, front.access), methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_endpoint})


async def _no_endpoint(request: Request, error: Exception) -> Response:
    """A path or a method that is not there."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:256]}: {error.detail}; /openapi.json lists what there is"
    body = ErrorAnswer(ErrorBody(message, "invalid_request_error", None, "not_found"))
    return json_response(body, error.status_code, dict(error.headers or {}))
