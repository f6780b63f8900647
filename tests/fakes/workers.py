"""Workers that follow a script instead of a model: gRPC servers on this host, and the directory that lists them."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.convert import finish_to_pb
from baton.directory.base import WorkerRecord
from baton.errors import BatonError, ErrorCode
from baton.grpc_util.server import Server
from baton.rpc import kv_pb2, worker_pb2, worker_pb2_grpc
from baton.tls import Tls
from baton.types import FinishReason, Role, WorkerRef

PrefillScript = Callable[[worker_pb2.PrefillRequest], AsyncIterator[worker_pb2.PrefillEvent]]
DecodeScript = Callable[[worker_pb2.DecodeRequest], AsyncIterator[worker_pb2.DecodeEvent]]

TRANSFER = worker_pb2.TransferStats(blocks=3, bytes=4096, writes=2, post_us=5, transfer_us=70, exposed_us=11)
ADMITTED = worker_pb2.Admitted(verify_us=13, control_us=17)


def first_token(
    token_id: int, finish: FinishReason | None = None, cached: int = 0, position: int = 0
) -> worker_pb2.PrefillEvent:
    """Prefill's first event."""
    first = worker_pb2.FirstToken(
        token_id=token_id,
        finish_reason=finish_to_pb(finish),
        cached_prompt_tokens=cached,
        output_position=position,
    )
    return worker_pb2.PrefillEvent(first_token=first)


def prompt_logprobs(position: int, *token_ids: int) -> worker_pb2.PromptLogprobs:
    """Of the prompt's tokens from `position` on, each with itself as the only alternative."""
    entries = [
        {"sampled": {"token_id": token, "logprob": -1.0}, "top": [{"token_id": token, "logprob": -1.0}]}
        for token in token_ids
    ]
    return worker_pb2.PromptLogprobs(position=position, logprobs=entries)


def prefill_done(transfer: worker_pb2.TransferStats = TRANSFER) -> worker_pb2.PrefillEvent:
    """Prefill's last event."""
    return worker_pb2.PrefillEvent(done=worker_pb2.PrefillDone(transfer=transfer))


def admitted() -> worker_pb2.DecodeEvent:
    """Decode has verified the KV."""
    return worker_pb2.DecodeEvent(admitted=ADMITTED)


def tokens(position: int, *token_ids: int, cached: int = 0) -> worker_pb2.DecodeEvent:
    """Some output tokens from `position` on."""
    event = worker_pb2.DecodeTokens(output_position=position, token_ids=token_ids, cached_prompt_tokens=cached)
    return worker_pb2.DecodeEvent(tokens=event)


def move_wanted() -> worker_pb2.DecodeEvent:
    """Decode wants to be rid of the request."""
    return worker_pb2.DecodeEvent(move_wanted=worker_pb2.MoveWanted())


def moved(position: int) -> worker_pb2.DecodeEvent:
    """Another worker goes on from there."""
    return worker_pb2.DecodeEvent(moved=worker_pb2.Moved(output_position=position))


def finished(reason: FinishReason = FinishReason.LENGTH, cached: int = 0) -> worker_pb2.DecodeEvent:
    """Decode's last event."""
    done = worker_pb2.DecodeFinished(finish_reason=finish_to_pb(reason), cached_prompt_tokens=cached)
    return worker_pb2.DecodeEvent(finished=done)


def prefill_of(answer: Sequence[int], cached: int = 0) -> PrefillScript:
    """A prefill worker that draws the first token of `answer`, or the one behind what is replayed."""

    async def script(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        position = len(request.output_token_ids)
        ends = request.sampling.max_tokens == position + 1
        yield first_token(answer[position], FinishReason.LENGTH if ends else None, cached, position)
        yield prefill_done(worker_pb2.TransferStats() if ends else TRANSFER)

    return script


def decode_of(answer: Sequence[int], delay_s: float = 0.0, reason: FinishReason = FinishReason.LENGTH) -> DecodeScript:
    """A decode worker that draws the other tokens of `answer`, or all of them for a local prompt."""

    async def script(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        is_local = request.WhichOneof("source") == "local"
        start = len(request.local.output_token_ids) if is_local else 1  # the gateway leaves out what is known
        if not is_local:
            yield admitted()
        for position in range(start, len(answer)):
            await asyncio.sleep(delay_s)
            yield tokens(position, answer[position], cached=8 if position == start else 0)
        yield finished(reason, cached=8)

    return script


async def never() -> Any:
    """No answer."""
    await asyncio.Event().wait()


async def hang(request: Any) -> AsyncIterator[Any]:
    """A worker that never answers."""
    await asyncio.Event().wait()
    yield


class FakePrefill(worker_pb2_grpc.PrefillWorkerServicer):
    """Records what it is asked; `script` says what a Prefill call yields."""

    def __init__(self, script: PrefillScript = hang) -> None:
        self.script = script
        self.fenced = True
        self.requests: list[worker_pb2.PrefillRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.cancels: list[worker_pb2.CancelPrefillRequest] = []
        self.extensions: list[worker_pb2.ExtendLeaseRequest] = []
        self.extension_gate: asyncio.Event | None = None  # ExtendLease answers when it is set
        self.open_streams = 0

    async def Prefill(self, request: worker_pb2.PrefillRequest, context: Any) -> AsyncIterator[worker_pb2.PrefillEvent]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.open_streams += 1
        context.add_done_callback(lambda _: self._stream_ended())
        async for event in self.script(request):
            yield event

    async def CancelPrefill(
        self, request: worker_pb2.CancelPrefillRequest, context: Any
    ) -> worker_pb2.CancelPrefillResponse:
        self.cancels.append(request)
        return worker_pb2.CancelPrefillResponse(fenced=self.fenced)

    async def ExtendLease(self, request: worker_pb2.ExtendLeaseRequest, context: Any) -> worker_pb2.ExtendLeaseResponse:
        self.extensions.append(request)
        if self.extension_gate is not None:
            await self.extension_gate.wait()
        return worker_pb2.ExtendLeaseResponse(known=self.open_streams > 0)

    def _stream_ended(self) -> None:
        self.open_streams -= 1


class FakeDecode(worker_pb2_grpc.DecodeWorkerServicer):
    """Records what it is asked; `script` says what a Decode call yields, `refusals` how the next Reserves fail."""

    def __init__(self, script: DecodeScript = hang) -> None:
        self.script = script
        self.refusals: list[BatonError] = []
        self.reserve_gate: asyncio.Event | None = None  # Reserve answers when it is set
        self.reserves: list[worker_pb2.ReserveRequest] = []
        self.requests: list[worker_pb2.DecodeRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.releases: list[worker_pb2.ReleaseRequest] = []
        self.renew_after_ms = 0
        self.renewals: list[worker_pb2.RenewRequest] = []
        self.migrations: list[worker_pb2.MigrateRequest] = []
        self.migrate: Callable[[], Awaitable[worker_pb2.MigrateResponse]] = never
        self.open_streams = 0

    async def Migrate(self, request: worker_pb2.MigrateRequest, context: Any) -> worker_pb2.MigrateResponse:
        self.migrations.append(request)
        return await self.migrate()

    async def Reserve(self, request: worker_pb2.ReserveRequest, context: Any) -> worker_pb2.ReserveResponse:
        self.reserves.append(request)
        if self.reserve_gate is not None:
            await self.reserve_gate.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        grant = kv_pb2.Grant(grant_id=f"grant-{len(self.reserves)}", request_id=request.request_id, epoch=request.epoch)
        return worker_pb2.ReserveResponse(grant=grant, renew_after_ms=self.renew_after_ms)

    async def Renew(self, request: worker_pb2.RenewRequest, context: Any) -> worker_pb2.RenewResponse:
        self.renewals.append(request)
        return worker_pb2.RenewResponse(lease_deadline_unix_ns=1000 + len(self.renewals))

    async def Decode(self, request: worker_pb2.DecodeRequest, context: Any) -> AsyncIterator[worker_pb2.DecodeEvent]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.open_streams += 1
        context.add_done_callback(lambda _: self._stream_ended())
        async for event in self.script(request):
            yield event

    async def Release(self, request: worker_pb2.ReleaseRequest, context: Any) -> worker_pb2.ReleaseResponse:
        self.releases.append(request)
        return worker_pb2.ReleaseResponse()

    def _stream_ended(self) -> None:
        self.open_streams -= 1


class FakeControl(worker_pb2_grpc.WorkerControlServicer):
    """Says what it was told to."""

    def __init__(self) -> None:
        self.stats = worker_pb2.WorkerStats(blocks_total=100, blocks_free=60, blocks_cached=30, requests_running=2)
        self.drains: list[worker_pb2.DrainRequest] = []
        self.failure: BatonError | None = None

    async def GetWorkerStats(self, request: Any, context: Any) -> worker_pb2.WorkerStats:
        return self.stats

    async def ResetPrefixCache(self, request: Any, context: Any) -> worker_pb2.ResetPrefixCacheResponse:
        if self.failure:
            raise self.failure
        return worker_pb2.ResetPrefixCacheResponse(blocks=self.stats.blocks_cached)

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        self.drains.append(request)
        return worker_pb2.DrainResponse(requests_open=2)


class FakeWorker:
    """One listening worker of either kind."""

    def __init__(
        self,
        name: str,
        role: Role,
        incarnation: str = "1",
        max_model_len: int = 4096,
        decode: FakeDecode | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.prefill = FakePrefill()
        self.decode = decode or FakeDecode()
        self.control = FakeControl()
        self._server = Server(["baton.v1.Worker"], tls)
        worker_pb2_grpc.add_WorkerControlServicer_to_server(self.control, self._server.grpc)
        worker_pb2_grpc.add_PrefillWorkerServicer_to_server(self.prefill, self._server.grpc)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(self.decode, self._server.grpc)
        self._record = WorkerRecord(
            WorkerRef(name, incarnation), role, "", "tiny", "fingerprint", 16, max_model_len, num_blocks=100
        )

    async def start(self, port: int = 0) -> WorkerRecord:
        """Listens, and returns what the directory shall say."""
        port = await self._server.start("127.0.0.1", port)
        await self.set_serving(True)
        fields = {name: getattr(self._record, name) for name in self._record.__struct_fields__}
        return WorkerRecord(**{**fields, "address": f"127.0.0.1:{port}"})

    async def set_serving(self, serving: bool) -> None:
        """What health checks are told."""
        await self._server.set_serving(serving)

    async def die(self) -> None:
        """Cuts all connections."""
        await self._server.close(0)


@dataclass
class FakeDirectory:
    """A worker directory in memory."""

    records: list[WorkerRecord] = field(default_factory=list)
    owned: dict[WorkerRef, int] = field(default_factory=dict)
    down: bool = False
    lookup_s: float = 0.0

    async def workers(self) -> list[WorkerRecord]:
        if self.down:
            raise BatonError(ErrorCode.UNAVAILABLE, "the directory is down")
        return list(self.records)

    async def longest_prefixes(self, hashes: Sequence[bytes], workers: Sequence[WorkerRef]) -> dict[WorkerRef, int]:
        await asyncio.sleep(self.lookup_s)
        return {} if self.down else {worker: min(self.owned.get(worker, 0), len(hashes)) for worker in workers}

    async def close(self) -> None:
        return None


async def _serve(role: Role, address_file: Path) -> None:
    """A worker process for tests that kill one: streams the first half of an answer, then hangs."""

    async def half_prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        await asyncio.sleep(0.3)
        yield first_token(100)
        await asyncio.Event().wait()

    async def half_decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        yield tokens(1, 101, 102)
        await asyncio.Event().wait()

    worker = FakeWorker(f"{role.value}-process", role)
    worker.prefill.script, worker.decode.script = half_prefill, half_decode
    record = await worker.start()
    partial = address_file.with_suffix(".partial")
    partial.write_text(record.address)
    partial.replace(address_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("role", type=Role)
    parser.add_argument("address_file", type=Path)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.role, options.address_file))
