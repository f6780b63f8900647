"""The PrefillWorker service: computes prompts and tells how each one's hand-over went."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.convert import (
    finish_to_pb,
    grant_from_pb,
    logprobs_to_pb,
    prompt_logprobs_to_pb,
    sampling_from_pb,
    transfer_to_pb,
)
from baton.errors import BatonError, ErrorCode, invalid
from baton.rpc import worker_pb2, worker_pb2_grpc
from baton.telemetry.tracing import Tracing
from baton.types import FinishReason, TransferStats
from baton.worker.admission import Admission
from baton.worker.calls import prompt_of, when_done
from engine.client import EngineClient
from engine.event_stream import AttemptKey, EventStream
from engine.messages import Abort, Aborted, AddPrefill, Failed, Finished, PromptLogprobs, Tokens
from engine.spans import AttemptSpans
from prefill_service.call_spans import CallSpans

SERVICE_NAME = "baton.v1.PrefillWorker"
_CANCELLED_KEPT = 10_000
Context = grpc.aio.ServicerContext[Any, Any]


class PrefillServicer(worker_pb2_grpc.PrefillWorkerServicer):
    """One engine core's front."""

    def __init__(self, engine: EngineClient, tracing: Tracing, worker_name: str, admission: Admission) -> None:
        self._admission = admission
        self._engine = engine
        self._tracing = tracing
        self._worker_name = worker_name
        self._cancelled: dict[AttemptKey, None] = {}  # the newest, oldest first

    async def Prefill(
        self, request: worker_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """The first token as soon as it is drawn, then how the hand-over went."""
        spans = CallSpans(AttemptSpans(self._tracing, context.invocation_metadata(), self._worker_name))
        command = _command(request)
        self._admission.check()
        if (request.request_id, request.epoch) in self._cancelled:
            raise _cancelled(request)  # overtaken by its CancelPrefill, which has promised that nothing is written
        stream = self._engine.submit(command)

        def ended() -> None:
            if not stream.over:
                self._engine.send(Abort(*stream.key))
            spans.call_ended()

        when_done(context, ended)
        async for event in stream:
            match event:
                case PromptLogprobs():
                    yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs_to_pb(event.position, event.logprobs))
                case Tokens():
                    spans.first_token(event)
                    yield worker_pb2.PrefillEvent(first_token=_first_token(event, stream))
                case Finished():
                    spans.core_ended(event)
                    done = worker_pb2.PrefillDone(transfer=transfer_to_pb(event.transfer or TransferStats()))
                    yield worker_pb2.PrefillEvent(done=done)
                case Failed():
                    spans.core_ended(event)
                    raise BatonError(event.code, event.message, reason=event.reason)
                case Aborted():
                    raise self._admission.aborted(request.request_id, request.epoch)
                case _:
                    raise AssertionError(f"the engine core answered AddPrefill with {type(event).__name__}")

    async def CancelPrefill(
        self, request: worker_pb2.CancelPrefillRequest, context: Context
    ) -> worker_pb2.CancelPrefillResponse:
        """Waits until the engine core has stopped the attempt. Should its Prefill call come later, it is refused."""
        self._cancelled[request.request_id, request.epoch] = None
        if len(self._cancelled) > _CANCELLED_KEPT:
            del self._cancelled[next(iter(self._cancelled))]
        aborted = await self._engine.abort(request.request_id, request.epoch)
        return worker_pb2.CancelPrefillResponse(fenced=aborted.fenced)

    async def ExtendLease(
        self, request: worker_pb2.ExtendLeaseRequest, context: Context
    ) -> worker_pb2.ExtendLeaseResponse:
        """Answered by the engine core, so that the answer also says that this lives."""
        known = await self._engine.extend_lease(request.request_id, request.epoch, request.lease_deadline_unix_ns)
        return worker_pb2.ExtendLeaseResponse(known=known)


def _cancelled(request: worker_pb2.PrefillRequest) -> BatonError:
    message = f"request {request.request_id} (epoch {request.epoch}) was cancelled on its prefill worker"
    return BatonError(ErrorCode.CANCELLED, message)


def _command(request: worker_pb2.PrefillRequest) -> AddPrefill:
    """Raises BatonError INVALID_ARGUMENT where the request does not fit its grant."""
    prompt = prompt_of(request.request_id, request.prompt_token_ids)
    name = f"request {request.request_id} (epoch {request.epoch})"
    if not request.HasField("grant"):
        raise invalid(f"{name}: got no grant; reserve room on a decode worker first")
    grant = request.grant
    if (grant.request_id, grant.epoch) != (request.request_id, request.epoch):
        raise invalid(
            f"{name}: got a grant of request {grant.request_id!r} (epoch {grant.epoch}), expected one of the same "
            "request and epoch"
        )
    sampling = sampling_from_pb(request.sampling)
    output = tuple(request.output_token_ids)
    return AddPrefill(
        request.request_id, request.epoch, prompt, sampling, grant_from_pb(grant), output, request.priority
    )


def _first_token(event: Tokens, stream: EventStream) -> worker_pb2.FirstToken:
    """The core sends the end of a request that its first token ends in one batch with the token."""
    reason: FinishReason | None = None
    for other in stream.pending():
        if isinstance(other, Finished):
            reason = other.reason
    return worker_pb2.FirstToken(
        token_id=event.token_ids[0],
        logprobs=logprobs_to_pb(event.logprobs[0]) if event.logprobs else None,
        finish_reason=finish_to_pb(reason),
        cached_prompt_tokens=event.cached_tokens,
        output_position=event.output_position,
        times=worker_pb2.PromptTimes(queue_us=event.queue_us, compute_us=event.compute_us),
    )
