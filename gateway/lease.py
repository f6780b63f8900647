"""A grant's lease, renewed for as long as its prompt waits or is computed."""

import asyncio
import logging

import grpc

from baton import faults
from baton.faults import Point
from baton.rpc import kv_pb2, worker_pb2
from gateway.attempt import Job
from gateway.router import Apart

logger = logging.getLogger(__name__)


async def keep_lease(job: Job, plan: Apart, grant: kv_pb2.Grant, renew_after_s: float) -> None:
    """Decode promises to wait longer, then prefill hears of it: so prefill never writes after what decode has promised.

    Returns when there is nothing to keep any more, or when an engine core gives no answer within what is left of the
    lease: a core that hangs is noticed by the lease that ends.
    """
    clock = asyncio.get_running_loop().time
    renew_at = clock() + renew_after_s
    try:
        while True:
            await asyncio.sleep(max(0.0, renew_at - clock()))
            renew_at = clock() + renew_after_s  # a late answer of prefill's shortens the next wait
            faults.at(Point.RENEW_SENT)
            renewed = await plan.decode.decode.Renew(
                worker_pb2.RenewRequest(grant_id=grant.grant_id, epoch=job.epoch), timeout=2 * renew_after_s
            )
            extended = await plan.prefill.prefill.ExtendLease(
                worker_pb2.ExtendLeaseRequest(
                    request_id=job.request_id,
                    epoch=job.epoch,
                    lease_deadline_unix_ns=renewed.lease_deadline_unix_ns,
                ),
                timeout=2 * renew_after_s,
            )
            if not extended.known:
                return
    except grpc.aio.AioRpcError as error:
        logger.info("%s: its lease is not renewed any more: %s %s", job.request_id, error.code(), error.details())
