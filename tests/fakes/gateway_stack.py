"""A gateway on this host with scripted workers behind it, and the client's view of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from baton.grpc_util.channel import open_channel
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.model_spec import load_model_spec
from baton.rpc import inference_pb2, inference_pb2_grpc
from baton.tls import Tls
from baton.types import Role
from gateway.app import Gateway
from gateway.config import GatewayConfig, Limits
from tests.fakes.workers import FakeDecode, FakeDirectory, FakeWorker, decode_of, prefill_of

PROMPT = list(range(40, 80))
ANSWER = [100, 101, 102, 103, 104]


async def eventually(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Waits until `condition` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


@dataclass
class Stack:
    """One gateway, its workers, and a client's stub."""

    gateway: Gateway
    channel: grpc.aio.Channel
    stub: inference_pb2_grpc.InferenceStub
    directory: FakeDirectory
    workers: dict[str, FakeWorker]
    port: int
    http_url: str  # with the option http_port=0

    @property
    def prefill(self) -> Any:
        """The prefill side of worker p0."""
        return self.workers["p0"].prefill

    @property
    def decode(self) -> Any:
        """The decode side of worker d0."""
        return self.workers["d0"].decode

    async def generate(self, **fields: Any) -> list[inference_pb2.GenerateResponse]:
        """All responses to one request; a default prompt unless one is given."""
        return await self.read_all(self.stream(**fields))

    async def read_all(self, stream: Any) -> list[inference_pb2.GenerateResponse]:
        """What is left of a stream."""
        responses = []
        while (response := await stream.read()) is not grpc.aio.EOF:
            responses.append(response)
        return responses

    def stream(self, deadline_s: float = 10.0, metadata: Sequence[tuple[str, str]] = (), **fields: Any) -> Any:
        """The call itself; `fields` are those of the request."""
        if not fields.keys() & {"text", "chat", "tokens"}:
            fields["tokens"] = inference_pb2.TokenPrompt(token_ids=PROMPT)
        return self.stub.Generate(inference_pb2.GenerateRequest(**fields), timeout=deadline_s, metadata=metadata)

    async def error(self, **fields: Any) -> grpc.aio.AioRpcError:
        """The error that a request ends with."""
        try:
            responses = await self.generate(**fields)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"no error, but {len(responses)} responses")

    async def quiet(self) -> None:
        """Waits until no worker holds anything and the gateway counts no request."""
        both = [side for worker in self.workers.values() for side in (worker.prefill, worker.decode)]
        await eventually(lambda: not any(side.open_streams for side in both))
        pool = self.gateway.pool
        await eventually(lambda: not any(worker.in_flight for role in Role for worker in pool.workers(role)))


def ids_of(responses: Sequence[inference_pb2.GenerateResponse]) -> list[int]:
    """All tokens of an answer."""
    return [token_id for response in responses for token_id in response.token_ids]


@asynccontextmanager
async def running_stack(
    model: Path,
    roles: Sequence[tuple[str, Role]] = (("p0", Role.PREFILL), ("d0", Role.DECODE)),
    limits: Limits | None = None,
    otlp_endpoint: str | None = None,
    max_attempts: int = 3,
    replace_decode: Mapping[str, FakeDecode] | None = None,
    tls: Tls | None = None,
    **options: Any,
) -> AsyncIterator[Stack]:
    """Workers that answer `ANSWER`, and a gateway in front of them with these `GatewayConfig` options.

    Args:
        replace_decode: decode sides of some workers, by name.
        tls: of the workers and the client; the gateway's is an option.
    """
    directory, workers = FakeDirectory(), {}
    for name, role in roles:
        own = (replace_decode or {}).get(name)
        workers[name] = FakeWorker(name, role, decode=own, tls=tls)
        workers[name].prefill.script = prefill_of(ANSWER)
        if own is None:
            workers[name].decode.script = decode_of(ANSWER)
        directory.records.append(await workers[name].start())
    config = GatewayConfig(
        model=model,
        model_name="tiny",
        port=0,
        otlp_endpoint=otlp_endpoint,
        max_attempts=max_attempts,
        **options,
    )
    gateway = Gateway(config, load_model_spec(model, "tiny"), directory, limits or Limits(poll_interval_s=0.05))
    port = await gateway.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", tls, CHANNEL_OPTIONS) as channel:
            stub, http_url = (
                inference_pb2_grpc.InferenceStub(channel),
                f"{'https' if tls else 'http'}://127.0.0.1:{gateway.http_port}",
            )
            yield Stack(gateway, channel, stub, directory, workers, port, http_url)
    finally:
        await gateway.close()
        for worker in workers.values():
            await worker.die()


class FakeCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver that keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self._server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)

    async def start(self) -> str:
        """Returns the endpoint."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                self.spans += scope_spans.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    async def close(self) -> None:
        """Idempotent."""
        await self._server.stop(0)

    def named(self, name: str) -> list[trace_pb2.Span]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
