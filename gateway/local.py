"""An attempt on one worker that prefills and decodes."""

from baton.rpc import inference_pb2, worker_pb2
from gateway.attempt import Emit, Job
from gateway.decode_stream import DecodeStream
from gateway.output_order import OutputOrder
from gateway.worker import Worker


class LocalAttempt(DecodeStream):
    """One Decode stream, with the prompt in it."""

    def __init__(self, job: Job, worker: Worker, emit: Emit) -> None:
        """Opens the stream."""
        prompt = worker_pb2.LocalPrompt(
            prompt_token_ids=job.prompt_token_ids,
            sampling=job.sampling,
            output_token_ids=job.output_token_ids,
            priority=job.priority,
        )
        request = worker_pb2.DecodeRequest(request_id=job.request_id, epoch=job.epoch, local=prompt)
        super().__init__(job, worker, request, OutputOrder(emit, len(job.output_token_ids)), emit)

    def hand_over(self) -> inference_pb2.HandOver:
        return inference_pb2.HandOver(prefill_worker=self.decoder.name, decode_worker=self.decoder.name)
