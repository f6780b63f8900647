"""Baton's gateway over gRPC."""

from typing import Any, Self

import grpc

from baton.bench.targets.base import Arrivals, Ask, Failure, Served, Target, now_s
from baton.errors import BatonError, ErrorCode
from baton.grpc_util.server import TRANSPORT_MAX_BYTES
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2

_LIST_TIMEOUT_S = 10.0
# No keepalive: a server that is too busy to answer pings is to be measured, not given up.
_OPTIONS = (
    ("grpc.max_receive_message_length", TRANSPORT_MAX_BYTES),
    ("grpc.max_send_message_length", TRANSPORT_MAX_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in its stubs


class GrpcTarget(Target):
    """Prompts go out as token ids; each response counts as one arrival."""

    def __init__(self, address: str, temperature: float) -> None:
        self._address, self._temperature = address, temperature

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        self._generate = self._channel.unary_stream(
            "/baton.v1.Inference/Generate", None, response_deserializer=inference_pb2.GenerateResponse.FromString
        )
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._channel.close(None)

    async def served(self, model: str) -> Served:
        stub = inference_pb2_grpc.InferenceStub(self._channel)
        try:
            reply = await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=_LIST_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"grpc://{self._address} did not say what it serves ({error.code().name}: {error.details()}); start a "
                "stack with `baton up`, or name its gateway with --target",
            ) from error
        for served in reply.models:
            if model in ("", served.name):
                return Served(served.name, served.max_model_len)
        names = ", ".join(served.name for served in reply.models) or "no model"
        raise BatonError(ErrorCode.NOT_FOUND, f"got --model {model!r}, but grpc://{self._address} serves {names}")

    def prepare(self, ask: Ask, model: str) -> bytes:
        request = inference_pb2.GenerateRequest(
            request_id=ask.request_id,
            model=model,
            tokens=inference_pb2.TokenPrompt(token_ids=ask.prompt),
            sampling=sampling_pb2.SamplingParams(
                temperature=self._temperature, max_tokens=ask.output_tokens, ignore_eos=True
            ),
        )
        return request.SerializeToString()

    async def stream(self, request_id: str, payload: bytes, arrivals: Arrivals, timeout_s: float) -> None:
        call: Any = self._generate(payload, timeout=timeout_s)
        last: inference_pb2.GenerateResponse | None = None
        try:
            # read() takes two thirds of the time of `async for`, which runs a generator on top of it.
            while (response := await call.read()) is not _EOF:
                if response.token_ids:
                    arrivals.moments_s.append(now_s())
                    arrivals.token_ids += response.token_ids
                last = response
        except grpc.aio.AioRpcError as error:
            raise Failure(error.code().name.lower(), error.details() or "no details") from error
        finally:
            call.cancel()
            arrivals.num_tokens = len(arrivals.token_ids)
        if last is None or not last.finish_reason:
            raise Failure("broken off", f"the stream ended after {arrivals.num_tokens} tokens without a finish reason")
        arrivals.output_tokens = last.usage.completion_tokens
        arrivals.cached_tokens = last.usage.cached_prompt_tokens
        if not arrivals.moments_s:
            raise Failure("no tokens", "the answer ended without a token")
