"""The OpenAPI document, made of the structs that bodies are read into and answers are written from."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from gateway.http.endpoints import EndpointSpec
from gateway.http.errors import ErrorAnswer

Json = dict[str, Any]

_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_ERRORS = {
    "400": "a field is wrong, or the body is no JSON",
    "404": "no such model or path",
    "413": "the body is too large",
    "429": "no room on any worker; Retry-After says when to ask again",
    "500": "the server's fault",
    "503": "no worker can serve this now; Retry-After says when to ask again",
    "504": "the deadline passed",
}


def make_document(endpoints: Sequence[EndpointSpec]) -> Json:
    """Version 3.1."""
    types = [kind for spec in endpoints for kind in (spec.answer, spec.body) if kind is not None]
    _, components = msgspec.json.schema_components([*types, ErrorAnswer], ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton"), "description": "OpenAI's API, served by Baton."},
        "paths": {spec.path: {spec.method.lower(): _operation(spec)} for spec in endpoints},
        "components": {"schemas": components},
    }


def _operation(spec: EndpointSpec) -> Json:
    content = _json_content(spec.answer)
    if spec.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answers: Json = {"200": {"description": spec.summary, "content": content}}
    answers |= {
        status: {"description": reason, "content": _json_content(ErrorAnswer)} for status, reason in _ERRORS.items()
    }
    operation: Json = {"summary": spec.summary, "operationId": spec.path.strip("/"), "responses": answers}
    if spec.body is not None:
        operation["requestBody"] = {"required": True, "content": _json_content(spec.body)}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(spec.path)
    ]
    return operation | ({"parameters": parameters} if parameters else {})


def _json_content(kind: type[msgspec.Struct]) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
