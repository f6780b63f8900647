"""An attempt that is one Decode stream: cancelling it frees all that the worker holds."""

from abc import abstractmethod

import grpc

from baton.convert import finish_from_pb
from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, worker_pb2
from baton.types import FinishReason
from gateway.attempt import Attempt, Emit, Finished, Job, Moved, PromptLogprobs
from gateway.output_order import OutputOrder
from gateway.worker import Worker
from gateway.worker_errors import worker_error


class DecodeStream(Attempt):
    """What a prompt and a grant that this gateway gave to a decode worker have in common."""

    def __init__(
        self, job: Job, worker: Worker, request: worker_pb2.DecodeRequest, order: OutputOrder, emit: Emit | None
    ) -> None:
        """Opens the stream. `emit`: for what is told of the prompt; None where that has been told."""
        super().__init__(job, worker, order)
        self._emit = emit
        self._cached_prompt_tokens = 0
        self._admitted = False
        self._was_connected = worker.connected  # so that it has begun when the stream breaks
        self._stream = worker.decode.Decode(request, timeout=job.remaining_s(), metadata=job.trace.metadata)

    async def known(self) -> None:
        await self._stream.initial_metadata()

    async def run(self) -> Finished | Moved:
        try:
            async for event in self._stream:
                match event.WhichOneof("event"):
                    case "prompt_logprobs" if self._emit:
                        told = event.prompt_logprobs
                        self._emit(PromptLogprobs(told.position, told.logprobs))
                    case "admitted":
                        self._admitted = True
                    case "tokens":
                        self.job.trace.ttft.first_token(event.tokens.times)
                        self._cached_prompt_tokens = self._cached_prompt_tokens or event.tokens.cached_prompt_tokens
                        self.order.add(event.tokens.output_position, event.tokens.token_ids, event.tokens.logprobs)
                    case "move_wanted":
                        self.move_wanted.set()
                    case "moved":
                        return Moved(self._cached_prompt_tokens, self.hand_over())
                    case "finished" if self.order.complete and event.finished.finish_reason:
                        reason = finish_from_pb(event.finished.finish_reason)
                        assert reason is not None
                        self._cached_prompt_tokens = event.finished.cached_prompt_tokens
                        return self._finished(reason)
        except grpc.aio.AioRpcError as error:
            raise worker_error(error, self.decoder, self.job.limits, self._at_work()) from error
        raise BatonError(
            ErrorCode.INTERNAL,
            f"worker {self.decoder.name} ended the answer after {self.order.next_position} tokens without a reason or "
            "with tokens missing; its log has the details",
        )

    async def stop(self) -> Finished:
        self._stream.cancel()
        return self._finished(FinishReason.STOP)

    async def close(self) -> None:
        self._stream.cancel()

    @abstractmethod
    def hand_over(self) -> inference_pb2.HandOver:
        """Which workers have served the request."""

    def _at_work(self) -> bool:
        """Whether the worker was to compute for the request next."""
        return self._was_connected or self.order.started

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._cached_prompt_tokens, self.hand_over())
