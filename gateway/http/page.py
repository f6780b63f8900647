"""The chat page for people at /, and traces as text to link to from it."""

import io
from importlib.resources import files

import grpc
from rich.console import Console
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, ErrorCode, invalid
from baton.grpc_util.channel import open_channel
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import trace_store_pb2, trace_store_pb2_grpc
from baton.telemetry.tree import parse_spans, render_tree
from baton.tls import Tls

_POLICY = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
_TRACE_ID_CHARS = 32
_TIMEOUT_S = 2.0
_COLUMNS = 160


class PageEndpoints:
    """Static files, read once, and the stack's trace store."""

    def __init__(self, trace_store: str | None, tls: Tls | None = None) -> None:
        """`trace_store`: host:port of the OTLP receiver that gets the spans; the launcher's keeps the newest traces."""
        here = files(__package__)
        self._html = (here / "page.html").read_bytes()
        self._script = (here / "page.js").read_bytes()
        self._trace_store = trace_store
        self._tls = tls

    async def page(self, request: Request) -> Response:
        """The page; it loads its script from here and nothing from anywhere else."""
        headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
        return Response(self._html, headers=headers, media_type="text/html")

    async def script(self, request: Request) -> Response:
        """The page's."""
        return Response(self._script, headers={"x-content-type-options": "nosniff"}, media_type="text/javascript")

    async def trace(self, request: Request) -> Response:
        """The tree of one request's spans, as `baton generate` shows it.

        Raises:
            BatonError: INVALID_ARGUMENT for what is no trace id, NOT_FOUND when nobody knows the trace.
        """
        trace_id = request.path_params["trace_id"]
        if len(trace_id) != _TRACE_ID_CHARS or not set(trace_id) <= set("0123456789abcdef"):
            raise invalid(f"trace_id: got {trace_id[:64]!r}, expected 32 hex digits; take the one of an answer")
        spans = parse_spans(await self._stored(trace_id))
        if not spans:
            raise BatonError(
                ErrorCode.NOT_FOUND,
                f"trace_id: got {trace_id}, of which no span has come yet; try again, or ask anew",
            )
        text = io.StringIO()
        Console(file=text, width=_COLUMNS).print(render_tree(spans))
        return Response(text.getvalue(), media_type="text/plain")

    async def _stored(self, trace_id: str) -> bytes:
        if self._trace_store is None:
            raise BatonError(ErrorCode.NOT_FOUND, "traces are not kept; start the gateway with --otlp-endpoint")
        async with open_channel(self._trace_store, self._tls, CHANNEL_OPTIONS) as channel:
            stub = trace_store_pb2_grpc.TraceStoreStub(channel)
            try:
                found = await stub.GetTrace(trace_store_pb2.GetTraceRequest(trace_id=trace_id), timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise BatonError(
                    ErrorCode.NOT_FOUND,
                    f"the receiver of spans at {self._trace_store} gives no traces ({error.code().name}); look into "
                    "the tracing backend behind it",
                ) from error
        return bytes(found.otlp_traces_data)
