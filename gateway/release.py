"""Giving back what an attempt holds on its workers; failures are logged, for leases free it in the end."""

import logging

import grpc

from baton import faults
from baton.faults import Point
from baton.rpc import kv_pb2, worker_pb2
from gateway.attempt import Job
from gateway.worker import Worker

logger = logging.getLogger(__name__)


async def cancel_prefill(job: Job, worker: Worker) -> bool:
    """Stops an attempt on its prefill worker; True when it is certain that no write is or will be under way."""
    faults.at(Point.CANCEL_SENT)
    try:
        response = await worker.prefill.CancelPrefill(
            worker_pb2.CancelPrefillRequest(request_id=job.request_id, epoch=job.epoch),
            timeout=job.limits.cleanup_timeout_s,
            metadata=job.trace.metadata,
        )
    except grpc.aio.AioRpcError as error:
        logger.warning("%s: CancelPrefill on %s: %s %s", job.request_id, worker.name, error.code(), error.details())
        return False
    return bool(response.fenced)


async def release_grant(job: Job, worker: Worker, grant: kv_pb2.Grant, fenced: bool) -> None:
    """Gives a grant back to its decode worker."""
    faults.at(Point.RELEASE_SENT)
    try:
        await worker.decode.Release(
            worker_pb2.ReleaseRequest(grant_id=grant.grant_id, epoch=job.epoch, fenced=fenced),
            timeout=job.limits.cleanup_timeout_s,
            metadata=job.trace.metadata,
        )
    except grpc.aio.AioRpcError as error:
        logger.warning("%s: Release on %s: %s %s", job.request_id, worker.name, error.code(), error.details())
