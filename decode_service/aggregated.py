"""The DecodeWorker service of an aggregated worker: prompts are prefilled and continued here."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.convert import sampling_from_pb
from baton.errors import BatonError, ErrorCode, invalid
from baton.rpc import worker_pb2, worker_pb2_grpc
from baton.telemetry.tracing import Tracing
from baton.worker.admission import Admission
from baton.worker.calls import prompt_of, when_done
from decode_service.answer import Answer
from engine.client import EngineClient
from engine.event_stream import EventStream
from engine.messages import Abort, AddLocal
from engine.spans import AttemptSpans

SERVICE_NAME = "baton.v1.DecodeWorker"
Context = grpc.aio.ServicerContext[Any, Any]


class AggregatedServicer(worker_pb2_grpc.DecodeWorkerServicer):
    """One engine core's front, for local prompts."""

    def __init__(self, engine: EngineClient, tracing: Tracing, worker_name: str, admission: Admission) -> None:
        self._admission = admission
        self._engine = engine
        self._tracing = tracing
        self._worker_name = worker_name

    async def Decode(
        self, request: worker_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[worker_pb2.DecodeEvent]:
        """Streams an answer; the call's early end aborts the attempt."""
        stream = self._open(request)
        spans = AttemptSpans(self._tracing, context.invocation_metadata(), self._worker_name)
        is_local = request.WhichOneof("source") == "local"
        answer = Answer(stream, spans, is_local, self._admission, request.answer_index)

        def ended() -> None:
            answer.call_ended()
            if not stream.over:
                self._engine.send(Abort(*stream.key))

        when_done(context, ended)
        await context.send_initial_metadata(())  # from now on `fork_of` can name it
        async for response in answer.responses():
            yield response

    async def Reserve(self, request: worker_pb2.ReserveRequest, context: Context) -> worker_pb2.ReserveResponse:
        """Not for this kind of worker."""
        raise BatonError(
            ErrorCode.UNIMPLEMENTED,
            f"worker {self._worker_name} was started with --aggregated: it takes local prompts, not hand-overs",
        )

    async def Migrate(self, request: worker_pb2.MigrateRequest, context: Context) -> worker_pb2.MigrateResponse:
        """Not from this kind of worker, which has no connector."""
        raise BatonError(
            ErrorCode.UNIMPLEMENTED, f"worker {self._worker_name} was started with --aggregated: it cannot hand KV on"
        )

    async def Release(self, request: worker_pb2.ReleaseRequest, context: Context) -> worker_pb2.ReleaseResponse:
        """There is nothing to give back."""
        return worker_pb2.ReleaseResponse()

    def _open(self, request: worker_pb2.DecodeRequest) -> EventStream:
        if request.WhichOneof("source") != "local":
            got = f"grant {request.grant_id!r}" if request.grant_id else "neither a grant nor a local prompt"
            raise invalid(f"request {request.request_id}: got {got}; worker {self._worker_name} needs a local prompt")
        self._admission.check()
        local = request.local
        return self._engine.submit(
            AddLocal(
                request.request_id,
                request.epoch,
                prompt_of(request.request_id, local.prompt_token_ids),
                sampling_from_pb(local.sampling),
                tuple(local.output_token_ids),
                local.priority,
                (local.fork_of.request_id, local.fork_of.epoch) if local.HasField("fork_of") else None,
            )
        )
