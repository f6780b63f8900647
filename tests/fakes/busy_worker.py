"""Scripted workers with a capacity: a decode worker that holds so many requests and refuses others, as real ones do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from baton.errors import BatonError, ErrorCode
from baton.rpc import worker_pb2
from tests.fakes.workers import FakeDecode, admitted, decode_of, finished, tokens

_RETRY_S = 0.02


class BusyDecode(FakeDecode):
    """`slots` requests at a time, each `service_s` long; a Reserve above that is told to come again."""

    def __init__(self, slots: int, service_s: float, num_tokens: int) -> None:
        super().__init__(decode_of([]))
        self.script = self._serve
        self._slots = slots
        self._service_s = service_s
        self._num_tokens = num_tokens
        self._grants: set[str] = set()
        self.most = 0

    async def Reserve(self, request: worker_pb2.ReserveRequest, context: Any) -> worker_pb2.ReserveResponse:
        if len(self._grants) >= self._slots:
            raise BatonError(ErrorCode.RESOURCE_EXHAUSTED, f"{self._slots} requests are here", _RETRY_S)
        response = await super().Reserve(request, context)
        self.reserves.clear()  # a long run would keep them all
        grant = response.grant
        grant.grant_id = f"{request.request_id}/{request.epoch}"
        self._grants.add(grant.grant_id)
        self.most = max(self.most, len(self._grants))
        return response

    async def Release(self, request: worker_pb2.ReleaseRequest, context: Any) -> worker_pb2.ReleaseResponse:
        self._grants.discard(request.grant_id)
        return worker_pb2.ReleaseResponse()

    async def Decode(self, request: worker_pb2.DecodeRequest, context: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
        context.add_done_callback(lambda _: self._grants.discard(request.grant_id))
        async for event in super().Decode(request, context):
            yield event

    async def _serve(self, request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        self.requests.clear()
        self.metadata.clear()
        yield admitted()
        for position in range(1, self._num_tokens):
            await asyncio.sleep(self._service_s / (self._num_tokens - 1))
            yield tokens(position, 100 + position)
        yield finished()
