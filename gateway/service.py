"""The gRPC service for clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import msgspec
from opentelemetry.util.types import AttributeValue

from baton.errors import invalid
from baton.model_spec import ModelSpec
from baton.rpc import inference_pb2, inference_pb2_grpc
from baton.telemetry.tracing import Tracing
from gateway.access.access import Access, Caller
from gateway.admission.base import Demand
from gateway.admission.front import Admission
from gateway.answers import Answers
from gateway.attempt import Tokens
from gateway.chat import Chat, ChatConfig
from gateway.metrics import GatewayMetrics, RequestFigures
from gateway.no_text import TokensOnlyCodec
from gateway.orchestrator import Orchestrator
from gateway.pool import Pool
from gateway.request_trace import RequestTrace
from gateway.text import TextCodec
from gateway.token_service import TokenService
from gateway.validate import ValidatedRequest, Validator

SERVICE_NAME = "baton.v1.Inference"


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """All methods for one served model."""

    def __init__(
        self,
        spec: ModelSpec,
        codec: TextCodec | TokensOnlyCodec,
        validator: Validator,
        pool: Pool,
        orchestrator: Orchestrator,
        tracing: Tracing,
        chat_config: ChatConfig,
        metrics: GatewayMetrics,
        admission: Admission,
        access: Access,
    ) -> None:
        self._spec = spec
        self._codec = codec
        self._validator = validator
        self._pool = pool
        self._orchestrator = orchestrator
        self._tracing = tracing
        self._chat = Chat(codec, chat_config)
        self._tokens = TokenService(codec, spec.vocab_size)
        self._metrics = metrics
        self._admission = admission
        self._access = access
        self._running: set[str] = set()  # request ids

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Serves one request; errors of any kind are `BatonError`s with a status of the same name."""
        trace = RequestTrace(self._tracing, context.invocation_metadata())
        # A call that ends while this generator is suspended at a `yield` does not resume it; the callback still comes.
        scope = ExitStack()
        _when_done(context, scope.close)
        figures = RequestFigures(self._metrics)
        with scope, _failures_in(trace, figures):
            scope.callback(trace.end)
            scope.callback(figures.end)
            caller = self._access.caller(context)
            scope.callback(caller.begin())
            self._admission.set_workers(self._pool.num_decoding)
            ticket = self._admission.arrive(caller.client, request.priority)
            scope.callback(ticket.end)
            checked = await self._validator.validate(request, self._max_model_len(), trace)
            checked = _within(caller, checked, explicit=request.sampling.HasField("max_tokens"))
            self._claim(checked.request_id, scope)
            trace.set(_attributes(checked, self._spec.name, is_chat=request.WhichOneof("prompt") == "chat"))
            with trace.child("gateway.admit"):
                await ticket.start(_demand(checked, context.time_remaining()))
            runs = self._orchestrator.start(checked, context.time_remaining(), trace)
            scope.callback(runs.cancel)
            answers = Answers(checked, self._codec, trace)
            async for index, event in runs:
                if isinstance(event, Tokens):
                    ticket.first_token()
                    responses = figures.seen(answers.take(index, event))
                    trace.sends(responses)
                    for response in responses:
                        yield response
                    if not answers.stopped(index):
                        continue
                    event = await runs.stop(index)
                responses = figures.seen(answers.take(index, event))
                trace.sends(responses)
                if answers.complete:
                    trace.succeed()
                    figures.succeed()
                    ticket.succeed(answers.num_tokens)
                    scope.close()
                for response in responses:
                    yield response

    async def Chat(
        self, request: inference_pb2.ChatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb2.ChatResponse]:
        """`Generate` for a chat, with reasoning and tool calls taken out of the text."""
        async for response in self._chat.stream(request, context, self.Generate):
            yield response

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.TokenizeResponse:
        """A text's or a chat's token ids."""
        self._access.caller(context)
        self._validator.check_size(request)
        self._validator.check_model(request.model)
        return await self._tokens.tokenize(request, self._max_model_len())

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.DetokenizeResponse:
        """The text of token ids."""
        self._access.caller(context)
        self._validator.check_size(request)
        self._validator.check_model(request.model)
        return await self._tokens.detokenize(request)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        """The one served model."""
        self._access.caller(context)
        model = inference_pb2.Model(name=self._spec.name, max_model_len=self._max_model_len())
        return inference_pb2.ListModelsResponse(models=[model])

    def _max_model_len(self) -> int:
        return self._pool.max_model_len(self._spec.max_position_embeddings)

    def _claim(self, request_id: str, scope: ExitStack) -> None:
        """Two running requests of one id could not be told apart in logs and traces."""
        if request_id in self._running:
            raise invalid(
                f"request_id: got {request_id!r}, which a running request has; choose another or leave it empty"
            )
        self._running.add(request_id)
        scope.callback(self._running.discard, request_id)


def _when_done(context: Any, callback: Callable[[], None]) -> None:
    """`Any`, because grpc-stubs declares a class where gRPC takes any function."""
    context.add_done_callback(lambda _: callback())


def _within(caller: Caller, request: ValidatedRequest, explicit: bool) -> ValidatedRequest:
    """The request as the caller's key allows it. `explicit`: the client has said how long answers may be."""
    max_tokens = caller.max_tokens(request.sampling.max_tokens, explicit)
    if max_tokens == request.sampling.max_tokens:
        return request
    if request.sampling.min_tokens > max_tokens:
        raise invalid(
            f"min_tokens: got {request.sampling.min_tokens}, expected at most {max_tokens}, which is all that this API "
            "key may have of an answer; lower it"
        )
    return replace(request, sampling=msgspec.structs.replace(request.sampling, max_tokens=max_tokens))


def _demand(request: ValidatedRequest, remaining_s: float | None) -> Demand:
    """`remaining_s`: how long the client waits; None: for ever."""
    return Demand(
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=request.sampling.max_tokens,
        num_answers=request.num_answers[1],
        priority=request.priority,
        deadline=None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s,
    )


def _attributes(request: ValidatedRequest, model: str, is_chat: bool) -> dict[str, AttributeValue]:
    """OpenTelemetry's semantic conventions for generative AI, and our own id."""
    n, best_of = request.num_answers
    several: dict[str, AttributeValue] = {"gen_ai.request.choice.count": n, "baton.best_of": best_of}
    return {
        **(several if best_of > 1 else {}),
        "baton.request_id": request.request_id,
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.sampling.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
    }


@contextmanager
def _failures_in(trace: RequestTrace, figures: RequestFigures) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        trace.fail(error)
        figures.failed(error)
        raise
