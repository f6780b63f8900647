"""The WorkerControl service, which every worker offers: what it is, how it is doing, whether its blocks add up."""

from collections.abc import Callable
from typing import Any

import grpc

from baton.errors import BatonError, ErrorCode, invalid
from baton.rpc import worker_pb2, worker_pb2_grpc
from baton.types import EngineStats
from baton.worker.engine import Engine

Context = grpc.aio.ServicerContext[Any, Any]


class ControlServicer(worker_pb2_grpc.WorkerControlServicer):
    """Answers from what does not change, and from the engine."""

    def __init__(
        self, info: worker_pb2.WorkerInfo, engine: Engine, begin_drain: Callable[[float | None], None]
    ) -> None:
        self._info = info
        self._engine = engine
        self._begin_drain = begin_drain

    async def GetWorkerInfo(self, request: worker_pb2.GetWorkerInfoRequest, context: Context) -> worker_pb2.WorkerInfo:
        """What this worker is."""
        return self._info

    async def GetWorkerStats(
        self, request: worker_pb2.GetWorkerStatsRequest, context: Context
    ) -> worker_pb2.WorkerStats:
        """How it is doing."""
        return stats_to_pb((await self._engine.stats()).stats)

    async def CheckIntegrity(
        self, request: worker_pb2.CheckIntegrityRequest, context: Context
    ) -> worker_pb2.WorkerStats:
        """How it is doing, unless its blocks do not add up."""
        answer = await self._engine.stats(check=True)
        if answer.problems:
            found = "; ".join(answer.problems)
            message = f"worker {self._info.worker.name}: the KV pool's books do not add up: {found}; restart it"
            raise BatonError(ErrorCode.FAILED_PRECONDITION, message)
        return stats_to_pb(answer.stats)

    async def ResetPrefixCache(
        self, request: worker_pb2.ResetPrefixCacheRequest, context: Context
    ) -> worker_pb2.ResetPrefixCacheResponse:
        """Drops cached blocks that nobody uses; the directory hears of it as of any other eviction."""
        return worker_pb2.ResetPrefixCacheResponse(blocks=await self._engine.reset_prefix_cache())

    async def MigrateOut(
        self, request: worker_pb2.MigrateOutRequest, context: Context
    ) -> worker_pb2.MigrateOutResponse:
        """Who asks does not choose where to: that is the gateway's business."""
        return worker_pb2.MigrateOutResponse(requests_asked=self._engine.ask_to_move(request.request_ids))

    async def Drain(self, request: worker_pb2.DrainRequest, context: Context) -> worker_pb2.DrainResponse:
        """As SIGTERM; whoever waits for the end watches the process, or its port."""
        timeout_s = request.timeout_s if request.HasField("timeout_s") else None
        if timeout_s is not None and not 0 <= timeout_s < float("inf"):
            raise invalid(f"timeout_s: got {timeout_s:g}, expected seconds, 0 or more")
        self._begin_drain(timeout_s)
        return worker_pb2.DrainResponse(requests_open=self._engine.num_open)


def stats_to_pb(stats: EngineStats) -> worker_pb2.WorkerStats:
    """Field by field."""
    return worker_pb2.WorkerStats(
        blocks_total=stats.blocks.total,
        blocks_free=stats.blocks.free,
        blocks_cached=stats.blocks.cached,
        blocks_active=stats.blocks.active,
        blocks_quarantined=stats.blocks.quarantined,
        requests_running=stats.running,
        requests_waiting=stats.waiting,
        grants_open=stats.grants,
        steps=stats.steps,
        prefix_query_tokens=stats.prefix_query_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        preemptions=stats.preemptions,
        digest_mismatches=stats.digest_mismatches,
        swap_preemptions=stats.swap_preemptions,
        swap_blocks_used=stats.swap_blocks_used,
    )
