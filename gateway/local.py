"""An attempt on one worker that prefills and decodes."""

from baton.rpc import inference_pb2, worker_pb2
from gateway.attempt import Emit, Job
from gateway.decode_stream import DecodeStream
from gateway.output_order import OutputOrder
from gateway.worker import Worker


class LocalAttempt(DecodeStream):
    """One Decode stream, with the prompt in it."""

    def __init__(self, job: Job, worker: Worker, emit: Emit, fork_of: worker_pb2.AttemptRef | None = None) -> None:
        """Opens the stream. `fork_of`: whose KV the worker may share."""
        prompt = worker_pb2.LocalPrompt(
            prompt_token_ids=job.prompt_token_ids,
            sampling=job.sampling,
            output_token_ids=job.output_token_ids,
            priority=job.priority,
            fork_of=fork_of,
        )
        request = worker_pb2.DecodeRequest(
            request_id=job.request_id, epoch=job.epoch, local=prompt, answer_index=job.answer_index
        )
        super().__init__(job, worker, request, OutputOrder(emit, len(job.output_token_ids)), emit)

    def hand_over(self) -> inference_pb2.HandOver:
        return inference_pb2.HandOver(prefill_worker=self.decoder.name, decode_worker=self.decoder.name)
