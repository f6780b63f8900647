"""An attempt on two workers: prefill computes the prompt and the first token, decode the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from baton.convert import finish_from_pb
from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2, worker_pb2
from baton.types import FinishReason
from gateway.attempt import Attempt, Emit, Finished, Job, Moved, PromptLogprobs
from gateway.lease import keep_lease
from gateway.output_order import OutputOrder
from gateway.placement import Granted
from gateway.release import cancel_prefill, release_grant
from gateway.worker import Worker
from gateway.worker_errors import worker_error

logger = logging.getLogger(__name__)


class ApartAttempt(Attempt):
    """Two streams at once. Each is read by a task of its own; whatever they learn meets in `_outcome`."""

    def __init__(self, job: Job, place: Granted, emit: Emit) -> None:
        """Opens both streams."""
        super().__init__(job, place.plan.decode, OutputOrder(emit, len(job.output_token_ids)))
        self._job = job
        self._plan = plan = place.plan
        self._grant = place.grant
        self._emit = emit
        self._order = self.order
        self._outcome: asyncio.Future[FinishReason | None] = asyncio.get_running_loop().create_future()
        self._cached_prompt_tokens = 0
        self._ended_by_prefill = False  # with the first token: nothing is handed over
        self._decode_reason: FinishReason | None = None
        self._moved = False
        self._admitted: worker_pb2.Admitted | None = None
        self._done: worker_pb2.PrefillDone | None = None
        self._prefill_was_connected = plan.prefill.connected  # so that it has begun when its stream breaks
        self._decode_task = asyncio.create_task(self._guard(self._read_decode, plan.decode))
        self._prefill_task = asyncio.create_task(self._guard(self._read_prefill, plan.prefill))
        self._lease_task: asyncio.Task[None] | None = None
        if place.renew_after_s:
            self._lease_task = asyncio.create_task(keep_lease(job, plan, place.grant, place.renew_after_s))

    async def known(self) -> None:
        return

    async def run(self) -> Finished | Moved:
        reason = await self._outcome
        if reason is None:
            return Moved(self._cached_prompt_tokens, self._hand_over())
        if not self._ended_by_prefill:
            await self._wait_for_prefill()
        return self._finished(reason)

    async def stop(self) -> Finished:
        self._decode_task.cancel()
        if self._admitted is not None:
            await self._wait_for_prefill()
        return self._finished(FinishReason.STOP)

    async def close(self) -> None:
        self._stop_renewing()
        self._decode_task.cancel()
        if self._decode_reason is None and self._ended_by_prefill:
            await self._wait_for_prefill()
        self._prefill_task.cancel()
        if self._decode_reason is not None or self._moved:
            return  # decode took the KV over and has freed it
        # PrefillDone of a hand-over says that every write has succeeded. Without a hand-over an early chunk's write may
        # have failed unnoticed, and a failed write can still land.
        handed_over = self._done is not None and not self._ended_by_prefill
        fenced = handed_over or await cancel_prefill(self._job, self._plan.prefill)
        await release_grant(self._job, self._plan.decode, self._grant, fenced)

    async def _read_prefill(self) -> None:
        stream = self._plan.prefill.prefill.Prefill(
            worker_pb2.PrefillRequest(
                request_id=self._job.request_id,
                epoch=self._job.epoch,
                prompt_token_ids=self._job.prompt_token_ids,
                sampling=self._job.sampling,
                grant=self._grant,
                output_token_ids=self._job.output_token_ids,
                priority=self._job.priority,
            ),
            timeout=self._job.remaining_s(),
            metadata=self._job.trace.metadata,
        )
        async for event in stream:
            match event.WhichOneof("event"):
                case "prompt_logprobs":
                    told = event.prompt_logprobs
                    self._emit(PromptLogprobs(told.position, told.logprobs))
                case "first_token":
                    self._take_first_token(event.first_token)
                case "done":
                    self._done = event.done
        if not self._order.started:
            raise _incomplete(self._plan.prefill, "before the first token")

    async def _read_decode(self) -> None:
        stream = self._plan.decode.decode.Decode(
            worker_pb2.DecodeRequest(
                request_id=self._job.request_id,
                epoch=self._job.epoch,
                grant_id=self._grant.grant_id,
                answer_index=self._job.answer_index,
            ),
            timeout=self._job.remaining_s(),
            metadata=self._job.trace.metadata,
        )
        async for event in stream:
            match event.WhichOneof("event"):
                case "admitted":
                    self._admitted = event.admitted
                    self._stop_renewing()
                case "tokens":
                    self._order.add(event.tokens.output_position, event.tokens.token_ids, event.tokens.logprobs)
                case "finished":
                    self._decode_reason = finish_from_pb(event.finished.finish_reason)
                    self._end_if_complete()
                case "move_wanted":
                    self.move_wanted.set()
                case "moved":
                    self._moved = True
                    self._end_if_complete()
                    return
        if self._decode_reason is None:
            raise _incomplete(self._plan.decode, "without a reason")

    def _take_first_token(self, first: worker_pb2.FirstToken) -> None:
        self._job.trace.ttft.first_token(first.times)
        self._cached_prompt_tokens = first.cached_prompt_tokens
        logprobs = [first.logprobs] if first.HasField("logprobs") else []
        self._order.add(first.output_position, [first.token_id], logprobs)
        reason = finish_from_pb(first.finish_reason)
        if reason is not None:
            self._ended_by_prefill = True
            self._end(reason)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        """Decode can be through, or rid of the request, before prefill's first token is here."""
        if self._moved and self._order.started:
            self._end(None)
        if self._decode_reason is None or not self._order.started:
            return
        if self._order.complete:
            self._end(self._decode_reason)
        else:
            self._fail(_incomplete(self._plan.decode, "with tokens missing"))

    async def _guard(self, read: Callable[[], Awaitable[None]], worker: Worker) -> None:
        """No end of a reader may leave the request waiting."""
        try:
            await read()
        except grpc.aio.AioRpcError as error:
            self._fail_if_needed(worker, worker_error(error, worker, self._job.limits, self._at_work(worker)))
        except BatonError as error:
            self._fail_if_needed(worker, error)
        except Exception as error:
            self._fail(error)

    def _at_work(self, worker: Worker) -> bool:
        """Whether this worker was to compute for the request next."""
        if worker is self._plan.prefill:
            return self._prefill_was_connected and not self._order.started
        return self._admitted is not None

    def _fail_if_needed(self, worker: Worker, error: BatonError) -> None:
        """Once decode runs and the first token is here, prefill is not needed any more; nor is decode at its end."""
        prefill_served = self._admitted is not None and self._order.started
        if prefill_served if worker is self._plan.prefill else self._decode_reason is not None or self._moved:
            logger.info("%s: going on without a worker that has done its part: %s", self._job.request_id, error)
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._outcome.done():
            logger.info("%s: failed after its end: %s", self._job.request_id, error)
        else:
            self._outcome.set_exception(error)

    def _end(self, reason: FinishReason | None) -> None:
        """None: it goes on on another worker."""
        if not self._outcome.done():
            self._outcome.set_result(reason)

    def _stop_renewing(self) -> None:
        if self._lease_task is not None:
            self._lease_task.cancel()

    async def _wait_for_prefill(self) -> None:
        await asyncio.wait([self._prefill_task], timeout=self._job.limits.transfer_wait_s)

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._cached_prompt_tokens, self._hand_over())

    def _hand_over(self) -> inference_pb2.HandOver:
        hand_over = inference_pb2.HandOver(prefill_worker=self._plan.prefill.name)
        if not self._ended_by_prefill:
            hand_over.decode_worker = self._plan.decode.name
        if self._done is not None:
            transfer = self._done.transfer
            hand_over.blocks, hand_over.bytes = transfer.blocks, transfer.bytes
            hand_over.transfer_us, hand_over.exposed_us = transfer.transfer_us, transfer.exposed_us
        if self._admitted is not None:
            hand_over.verify_us, hand_over.control_us = self._admitted.verify_us, self._admitted.control_us
        return hand_over


def _incomplete(worker: Worker, how: str) -> BatonError:
    return BatonError(
        ErrorCode.INTERNAL,
        f"{worker.record.role.value} worker {worker.name} ended its stream {how}; its log has the details",
    )
