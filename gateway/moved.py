"""The part of an attempt that comes after a move: a decode worker goes on with what another one has handed on."""

from baton.rpc import inference_pb2, kv_pb2, worker_pb2
from gateway.attempt import Job
from gateway.decode_stream import DecodeStream
from gateway.output_order import OutputOrder
from gateway.release import release_grant
from gateway.worker import Worker


class MovedAttempt(DecodeStream):
    """One Decode stream, with a grant. Its tokens go through the same `order` as those of the worker before."""

    def __init__(self, job: Job, worker: Worker, grant: kv_pb2.Grant, order: OutputOrder) -> None:
        """Opens the stream."""
        self._grant = grant
        request = worker_pb2.DecodeRequest(
            request_id=job.request_id, epoch=job.epoch, grant_id=grant.grant_id, answer_index=job.answer_index
        )
        super().__init__(job, worker, request, order, emit=None)

    async def give_back(self, fenced: bool) -> None:
        """The request was not moved. `fenced`: it is certain that the worker before writes nothing any more."""
        await release_grant(self.job, self.decoder, self._grant, fenced)
        await self.close()

    def hand_over(self) -> inference_pb2.HandOver:
        return inference_pb2.HandOver(decode_worker=self.decoder.name)

    def _at_work(self) -> bool:
        return self._admitted
