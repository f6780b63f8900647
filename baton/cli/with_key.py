"""An API key on every call of a channel; it comes from the environment, so that no list of processes shows it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc

VARIABLE = "BATON_API_KEY"


class _Details(NamedTuple):
    """What gRPC asks an interceptor for."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str]] | None
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _WithKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, key: str) -> None:
        self._added = ("authorization", f"Bearer {key}")

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_key(client_call_details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_key(client_call_details), request)

    def _with_key(self, call: Any) -> _Details:
        metadata = [*(call.metadata or ()), self._added]
        rest = (call.credentials, call.wait_for_ready, call.compression)
        return _Details(call.method, call.timeout, metadata, *rest)


def with_key(channel: grpc.Channel, environ: Mapping[str, str] = os.environ) -> grpc.Channel:
    """The channel with BATON_API_KEY in each call, where that is set."""
    key = environ.get(VARIABLE, "").strip()
    return grpc.intercept_channel(channel, _WithKey(key)) if key else channel
