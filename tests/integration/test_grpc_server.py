"""What every server here does with bytes that are no request: a status that says so, and no traceback."""

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from baton.grpc_util.server import Server
from baton.rpc import inference_pb2, inference_pb2_grpc

SERVICE = "baton.v1.Inference"

Call = Callable[[grpc.aio.Channel, str, bytes], Awaitable[None]]


class Models(inference_pb2_grpc.InferenceServicer):
    """Answers one unary and one streaming call."""

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: object
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name="m")])

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: object
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield inference_pb2.GenerateResponse(text=request.text)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = Server([SERVICE])
    inference_pb2_grpc.add_InferenceServicer_to_server(Models(), server.grpc)
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel
    await server.close(0)


async def call_unary(channel: grpc.aio.Channel, path: str, data: bytes) -> None:
    await channel.unary_unary(path)(data)


async def call_stream(channel: grpc.aio.Channel, path: str, data: bytes) -> None:
    async for _ in channel.unary_stream(path)(data):
        pass


@pytest.mark.parametrize(("method", "call"), [("ListModels", call_unary), ("Generate", call_stream)])
async def test_bytes_that_are_no_request_are_refused(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture, method: str, call: Call
) -> None:
    path = f"/{SERVICE}/{method}"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(channel, path, b"\xff\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{path}: got bytes that are not its request message" in str(raised.value.details())
    assert caplog.records == []


async def test_requests_are_read_as_before(channel: grpc.aio.Channel) -> None:
    stub = inference_pb2_grpc.InferenceStub(channel)
    assert (await stub.ListModels(inference_pb2.ListModelsRequest())).models[0].name == "m"
    answers = [answer.text async for answer in stub.Generate(inference_pb2.GenerateRequest(text="hi"))]
    assert answers == ["hi"]
