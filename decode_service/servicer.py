"""The DecodeWorker service of a decode worker: grants room for prompts prefilled elsewhere and continues them."""

import asyncio
import logging
import time

from baton.convert import grant_from_pb, grant_to_pb, sampling_from_pb
from baton.errors import BatonError, ErrorCode
from baton.rpc import worker_pb2
from baton.telemetry.tracing import Tracing
from baton.worker.admission import Admission
from baton.worker.calls import prompt_of
from decode_service.aggregated import AggregatedServicer, Context
from decode_service.grant_book import GrantBook, GrantEntry
from engine.client import EngineClient
from engine.event_stream import EventStream, MoveWanted
from engine.messages import Failed, Granted, Refused, Release, Reserve

logger = logging.getLogger(__name__)


class DecodeServicer(AggregatedServicer):
    """Adds grants; local prompts work here too."""

    def __init__(self, engine: EngineClient, tracing: Tracing, worker_name: str, admission: Admission) -> None:
        super().__init__(engine, tracing, worker_name, admission)
        self.grants = GrantBook()
        self._give_backs: set[asyncio.Task[None]] = set()

    async def Reserve(self, request: worker_pb2.ReserveRequest, context: Context) -> worker_pb2.ReserveResponse:
        """A grant, or a refusal that says when to try again."""
        self._admission.check()
        prompt = prompt_of(request.request_id, request.prompt_token_ids)
        sampling = sampling_from_pb(request.sampling)
        stream = self._engine.submit(
            Reserve(
                request.request_id,
                request.epoch,
                prompt,
                sampling,
                tuple(request.output_token_ids),
                request.priority,
                request.num_extra_tokens,
            )
        )
        try:
            while isinstance(event := await anext(stream), MoveWanted):
                pass  # there is nothing to move yet
        except asyncio.CancelledError:
            self._give_back_later(stream)
            raise
        match event:
            case Granted():
                self.grants.add(GrantEntry(event.grant, stream, event.cached_tokens))
                left_ns = event.grant.lease_deadline_unix_ns - time.time_ns()
                return worker_pb2.ReserveResponse(
                    grant=grant_to_pb(event.grant),
                    cached_prompt_tokens=event.cached_tokens,
                    renew_after_ms=max(1, left_ns // 3_000_000),  # a third of it, so that one may come late
                )
            case Refused():
                raise BatonError(event.code, event.message, event.retry_after_s)
            case Failed():
                raise BatonError(event.code, event.message, reason=event.reason)
            case _:
                raise self._admission.aborted(request.request_id, request.epoch)

    async def Renew(self, request: worker_pb2.RenewRequest, context: Context) -> worker_pb2.RenewResponse:
        """For as long as the grant's KV has not come."""
        deadline_ns = None
        if self.grants.epoch_of(request.grant_id) == request.epoch:
            deadline_ns = await self._engine.renew_lease(request.grant_id)
        if deadline_ns is None:
            raise BatonError(
                ErrorCode.NOT_FOUND,
                f"got grant {request.grant_id!r} (epoch {request.epoch}), expected one that waits for its KV here",
            )
        return worker_pb2.RenewResponse(lease_deadline_unix_ns=deadline_ns)

    async def Migrate(self, request: worker_pb2.MigrateRequest, context: Context) -> worker_pb2.MigrateResponse:
        """Answers when it is decided where the request goes on, and no write of it is under way any more."""
        ended = await self._engine.migrate(
            request.request_id, request.epoch, grant_from_pb(request.grant), request.num_reserved_tokens
        )
        return worker_pb2.MigrateResponse(moved=ended.moved, fenced=ended.fenced, problem=ended.problem)

    async def Release(self, request: worker_pb2.ReleaseRequest, context: Context) -> worker_pb2.ReleaseResponse:
        """Before or after the end of the grant's Decode call, known or not."""
        epoch = self.grants.epoch_of(request.grant_id)
        if epoch is not None and epoch != request.epoch:
            logger.info("dropped Release of grant %s: got epoch %d, it has %d", request.grant_id, request.epoch, epoch)
            return worker_pb2.ReleaseResponse()
        self.grants.drop(request.grant_id)
        self._engine.send(Release(request.grant_id, request.fenced))
        return worker_pb2.ReleaseResponse()

    def _open(self, request: worker_pb2.DecodeRequest) -> EventStream:
        if request.WhichOneof("source") != "grant_id":
            return super()._open(request)
        return self.grants.claim(request.grant_id, request.request_id, request.epoch).stream

    def _give_back_later(self, stream: EventStream) -> None:
        task = asyncio.create_task(self._give_back(stream))
        self._give_backs.add(task)
        task.add_done_callback(self._give_backs.discard)

    async def _give_back(self, stream: EventStream) -> None:
        """Releases what nobody has heard of: no prefill worker can write to it."""
        async for event in stream:
            if isinstance(event, Granted):
                self._engine.send(Release(event.grant.grant_id, fenced=True))
