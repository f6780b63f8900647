"""An attempt that shares its prompt's KV with that of answer 0, on the worker that has or gets it."""

from typing import NamedTuple

from baton.rpc import inference_pb2, worker_pb2
from gateway.attempt import Emit, Job
from gateway.local import LocalAttempt
from gateway.worker import Worker


class ForkPlace(NamedTuple):
    """An attempt whose prompt's KV is or will be on `worker`."""

    worker: Worker
    request_id: str
    epoch: int


class ForkAttempt(LocalAttempt):
    """One Decode stream that names the other attempt. When that one's KV is lost, the worker prefills the prompt."""

    def __init__(self, job: Job, place: ForkPlace, emit: Emit) -> None:
        """Opens the stream."""
        super().__init__(job, place.worker, emit, worker_pb2.AttemptRef(request_id=place.request_id, epoch=place.epoch))

    def hand_over(self) -> inference_pb2.HandOver:
        return inference_pb2.HandOver(decode_worker=self.decoder.name)
