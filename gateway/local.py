"""An attempt on one worker that prefills and decodes."""

import grpc

from baton.convert import finish_from_pb
from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, worker_pb2
from baton.types import FinishReason
from gateway.attempt import Attempt, Emit, Finished, Job, PromptLogprobs
from gateway.output_order import OutputOrder
from gateway.worker import Worker
from gateway.worker_errors import worker_error


class LocalAttempt(Attempt):
    """One Decode stream, with the prompt in it. Cancelling the stream frees all that the worker holds."""

    def __init__(self, job: Job, worker: Worker, emit: Emit) -> None:
        """Opens the stream."""
        self._job = job
        self._worker = worker
        self._emit = emit
        self._order = OutputOrder(emit, len(job.output_token_ids))
        self._cached_prompt_tokens = 0
        self._was_connected = worker.connected  # so that it has begun when the stream breaks
        prompt = worker_pb2.LocalPrompt(
            prompt_token_ids=job.prompt_token_ids,
            sampling=job.sampling,
            output_token_ids=job.output_token_ids,
            priority=job.priority,
        )
        self._stream = worker.decode.Decode(
            worker_pb2.DecodeRequest(request_id=job.request_id, epoch=job.epoch, local=prompt),
            timeout=job.remaining_s(),
            metadata=job.trace.metadata,
        )

    async def run(self) -> Finished:
        try:
            async for event in self._stream:
                match event.WhichOneof("event"):
                    case "prompt_logprobs":
                        told = event.prompt_logprobs
                        self._emit(PromptLogprobs(told.position, told.logprobs))
                    case "tokens":
                        self._cached_prompt_tokens = self._cached_prompt_tokens or event.tokens.cached_prompt_tokens
                        self._order.add(event.tokens.output_position, event.tokens.token_ids, event.tokens.logprobs)
                    case "finished" if self._order.complete and event.finished.finish_reason:
                        reason = finish_from_pb(event.finished.finish_reason)
                        assert reason is not None
                        self._cached_prompt_tokens = event.finished.cached_prompt_tokens
                        return self._finished(reason)
        except grpc.aio.AioRpcError as error:
            at_work = self._was_connected or self._order.started
            raise worker_error(error, self._worker, self._job.limits, at_work) from error
        raise BatonError(
            ErrorCode.INTERNAL,
            f"worker {self._worker.name} ended the answer after {self._order.next_position} tokens without a reason or "
            "with tokens missing; its log has the details",
        )

    async def stop(self) -> Finished:
        self._stream.cancel()
        return self._finished(FinishReason.STOP)

    async def close(self) -> None:
        self._stream.cancel()

    def _finished(self, reason: FinishReason) -> Finished:
        name = self._worker.name
        hand_over = inference_pb2.HandOver(prefill_worker=name, decode_worker=name)
        return Finished(reason, self._cached_prompt_tokens, hand_over)
