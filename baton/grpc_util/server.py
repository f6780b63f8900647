"""A gRPC server with health checking, reflection, bounds on sizes, and errors as statuses."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from baton.errors import BatonError, ErrorCode, invalid
from baton.grpc_util.status import abort
from baton.tls import Tls

logger = logging.getLogger(__name__)

# Above this gRPC itself refuses; below it the service says what to change (the gateway's --max-message-mib).
TRANSPORT_MAX_BYTES = 64 << 20

_BOTH_SIDES: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", TRANSPORT_MAX_BYTES),
    ("grpc.max_send_message_length", TRANSPORT_MAX_BYTES),
    # A peer that hangs, or whose host is gone, is noticed after 3 + 2 s. gRPC 1.85 goes by ping_timeout, whose default
    # is a minute: with keepalive_timeout alone a stopped process was noticed after 63 s. Its core answers pings, so a
    # peer that is merely busy in Python is not taken for dead.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

# For whoever calls a gateway or a worker.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH_SIDES,
    # A server that comes back is used within seconds; a new incarnation shares no connection state with the old one.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # servers are addressed directly, on a private network
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH_SIDES,
    # Clients ping every `keepalive_time_ms`; a server hangs up on one that pings more often than this.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)


class _Malformed:
    """Stands for a request that could not be read, until the guard answers."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs alone
    """Turns `BatonError` into its status; logs any other exception and answers INTERNAL without leaking it.

    Bytes that are not the method's request become INVALID_ARGUMENT, where gRPC itself would answer UNKNOWN and log a
    traceback.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _guard_unary(handler.unary_unary, method),
                _reader(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream, method),
                _reader(handler.request_deserializer),
                handler.response_serializer,
            )
        return handler


def _reader(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """`parse`, but for bytes that it cannot read a `_Malformed`: gRPC gives no other way to answer them."""
    if parse is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Malformed()

    return read


def _check_readable(request: Any, method: str) -> None:
    if isinstance(request, _Malformed):
        raise invalid(
            f"{method}: got bytes that are not its request message, expected what protos/ says; generate the client's "
            "stubs from this release's protos"
        )


async def _fail(context: Any, method: str, error: Exception) -> None:
    if isinstance(error, BatonError):
        await abort(context, error)
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
        raise error
    logger.exception("%s failed", method)
    await abort(context, BatonError(ErrorCode.INTERNAL, "internal error; the server's log has the details"))


def _guard_unary(inner: Any, method: str) -> Any:
    async def call(request: Any, context: Any) -> Any:
        try:
            _check_readable(request, method)
            return await inner(request, context)
        except Exception as error:
            await _fail(context, method, error)

    return call


def _guard_stream(inner: Any, method: str) -> Any:
    async def call(request: Any, context: Any) -> Any:
        try:
            _check_readable(request, method)
            async for response in inner(request, context):
                yield response
        except Exception as error:
            await _fail(context, method, error)

    return call


class Server:
    """One listening gRPC server. Health is NOT_SERVING until `set_serving(True)`."""

    def __init__(self, service_names: Sequence[str], tls: Tls | None = None, shared_port: bool = False) -> None:
        """`service_names`: full names, for health and reflection. `shared_port`: others may listen there, too."""
        self._tls = tls
        # Two servers on one port each get a part of the calls, without a word: only where that is wanted.
        options = [*SERVER_OPTIONS, ("grpc.so_reuseport", int(shared_port))]
        self.grpc = grpc.aio.server(interceptors=[ErrorInterceptor()], options=options)
        self._names = [*service_names, ""]
        self._health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in its stubs
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection([*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.grpc)

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; 0 asks for a free one.

        Raises:
            BatonError: FAILED_PRECONDITION when the port is taken, `host` is no address of this machine, or there is no
                certificate.
        """
        address = f"{host}:{port}"
        try:
            if self._tls is None:
                bound = self.grpc.add_insecure_port(address)
            else:
                bound = self.grpc.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"cannot listen on {host}:{port} ({error}); choose another --port, unless --host is no address of this "
                "machine",
            ) from error
        await self.set_serving(False)
        await self.grpc.start()
        return int(bound)

    async def set_serving(self, serving: bool) -> None:
        """What health checks answer."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, state)

    async def close(self, grace_s: float = 1.0) -> None:
        """Stops accepting, gives running calls `grace_s`, then cancels them. Idempotent."""
        await self.grpc.stop(grace_s)
