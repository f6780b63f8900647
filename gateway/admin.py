"""The gRPC service for whoever runs the gateway."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc

from baton.errors import BatonError, ErrorCode, invalid
from baton.rpc import admin_pb2, admin_pb2_grpc, worker_pb2
from baton.types import Role
from gateway.access.access import Access
from gateway.admission.core import AdmissionCore
from gateway.config import Limits
from gateway.pool import Pool
from gateway.worker import Worker
from gateway.worker_errors import worker_error

ADMIN_NAME = "baton.v1.Admin"
_STATS_TIMEOUT_S = 2.0
_CALL_TIMEOUT_S = 5.0
_LEVELS = ("debug", "info", "warning", "error")
_ROLES = {
    Role.PREFILL: worker_pb2.WORKER_ROLE_PREFILL,
    Role.DECODE: worker_pb2.WORKER_ROLE_DECODE,
    Role.AGGREGATED: worker_pb2.WORKER_ROLE_AGGREGATED,
}
Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)


class AdminService(admin_pb2_grpc.AdminServicer):
    """Every method asks first whether the caller may."""

    def __init__(self, access: Access, pool: Pool, admission: AdmissionCore, limits: Limits) -> None:
        self._access = access
        self._pool = pool
        self._admission = admission
        self._limits = limits

    async def ListWorkers(
        self, request: admin_pb2.ListWorkersRequest, context: Context
    ) -> admin_pb2.ListWorkersResponse:
        """Workers, with what each says of itself."""
        self._access.check_admin(context)
        workers = self._workers()
        entries = await asyncio.gather(*(_entry(worker) for worker in workers))
        core = self._admission
        return admin_pb2.ListWorkersResponse(
            workers=entries, requests_queued=core.queued, answers_running=core.running, answers_limit=core.limit
        )

    async def Drain(self, request: admin_pb2.AdminDrainRequest, context: Context) -> admin_pb2.AdminDrainResponse:
        """One worker leaves; no other is asked for it."""
        self._access.check_admin(context)
        (worker,) = self._named([request.worker])
        timeout_s = request.timeout_s if request.HasField("timeout_s") else None
        try:
            answer = await worker.control.Drain(worker_pb2.DrainRequest(timeout_s=timeout_s), timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise worker_error(error, worker, self._limits) from error
        logger.info("worker %s was told to drain", worker.name)
        return admin_pb2.AdminDrainResponse(requests_open=answer.requests_open)

    async def FlushCache(self, request: admin_pb2.FlushCacheRequest, context: Context) -> admin_pb2.FlushCacheResponse:
        """One that fails does not keep the others from it."""
        self._access.check_admin(context)
        workers = self._named(request.workers) if request.workers else self._workers()
        response = admin_pb2.FlushCacheResponse()
        for worker, outcome in zip(workers, await asyncio.gather(*map(_flush, workers)), strict=True):
            if isinstance(outcome, int):
                response.blocks[worker.name] = outcome
            else:
                response.failed[worker.name] = outcome
        logger.info("prefix caches dropped: %s", dict(response.blocks))
        return response

    async def SetLogLevel(
        self, request: admin_pb2.SetLogLevelRequest, context: Context
    ) -> admin_pb2.SetLogLevelResponse:
        """Of this process, until it ends."""
        self._access.check_admin(context)
        if request.level.lower() not in _LEVELS:
            raise invalid(f"level: got {request.level[:32]!r}, expected one of {', '.join(_LEVELS)}")
        if request.logger and request.logger not in logging.root.manager.loggerDict:
            raise invalid(
                f"logger: got {request.logger[:128]!r}, which this process has not; name a module, as in a log"
            )
        named = logging.getLogger(request.logger or None)
        before = logging.getLevelName(named.getEffectiveLevel()).lower()
        named.setLevel(request.level.upper())
        logger.info("log level of %s: %s, was %s", request.logger or "all", request.level.lower(), before)
        return admin_pb2.SetLogLevelResponse(before=before)

    def _workers(self) -> list[Worker]:
        return [worker for role in Role for worker in self._pool.workers(role)]

    def _named(self, names: Sequence[str]) -> list[Worker]:
        known = {worker.name: worker for worker in self._workers()}
        for name in names:
            if name not in known:
                listed = ", ".join(sorted(known)[:16]) or "none"
                raise BatonError(ErrorCode.NOT_FOUND, f"worker: got {name[:128]!r}, expected one of: {listed}")
        return [known[name] for name in names]


async def _entry(worker: Worker) -> admin_pb2.WorkerEntry:
    record = worker.record
    entry = admin_pb2.WorkerEntry(role=_ROLES[record.role], address=record.address, requests=worker.in_flight)
    entry.worker.name, entry.worker.incarnation = worker.ref.name, worker.ref.incarnation
    try:
        stats = await worker.control.GetWorkerStats(worker_pb2.GetWorkerStatsRequest(), timeout=_STATS_TIMEOUT_S)
        entry.stats.CopyFrom(stats)
    except grpc.aio.AioRpcError as error:
        logger.info("worker %s does not say how it is: %s", worker.name, error.code())
    if record.draining:
        entry.state = admin_pb2.WORKER_STATE_DRAINING
    elif worker.avoided:
        entry.state = admin_pb2.WORKER_STATE_UNREACHABLE
    else:
        entry.state = admin_pb2.WORKER_STATE_IN_USE
    return entry


async def _flush(worker: Worker) -> int | str:
    """Blocks dropped, or why none were."""
    try:
        answer = await worker.control.ResetPrefixCache(worker_pb2.ResetPrefixCacheRequest(), timeout=_CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return int(answer.blocks)
