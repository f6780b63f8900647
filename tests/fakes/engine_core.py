"""A stand-in for the engine core: a real process that speaks engine/wire and whose next token is the last one plus one.

The KV hand-over between two of these is a datagram that carries a real KvReady. Run with `--fd N`, like the core.
Requests whose id begins with "fail" fail, with "hang" never get a token, with "slow" get their grant late.
"""

import argparse
import socket
import sys
import time
import uuid

import msgspec

from baton.block_hash import block_hashes
from baton.convert import decode_kv_ready, encode_kv_ready
from baton.errors import ErrorCode
from baton.types import (
    BlockStats,
    EngineStats,
    FinishReason,
    Grant,
    KvEndpoint,
    KvLayout,
    KvReady,
    SamplingParams,
    TokenLogprobs,
    TransferStats,
)
from engine import messages as m
from engine.wire import CoreChannel

NUM_BLOCKS = 100
CACHED_TOKENS = 16
SLOW_S = 0.3


class Request:
    """One attempt that makes tokens here."""

    def __init__(self, command: m.AddLocal | m.AddPrefill | m.Reserve) -> None:
        self.command = command
        self.key = (command.request_id, command.epoch)
        self.queued_ns = time.time_ns()
        self.last_token = command.prompt[-1]
        self.position = 0
        self.grant: Grant | None = None
        self.first_ns = 0

    def timeline(self) -> m.Timeline:
        now, chunk = time.time_ns(), m.ComputeSpan(self.queued_ns, self.queued_ns + 1000, len(self.command.prompt))
        write = m.WriteSpan(self.queued_ns, self.queued_ns + 2000, 2, 4096)
        is_prefill = isinstance(self.command, m.AddPrefill)
        return m.Timeline(
            self.queued_ns, self.queued_ns, self.first_ns, now, (chunk,), (write,) if is_prefill else (), (now,)
        )


class FakeCore:
    """The loop of the core: commands in, a step for every running request, one batch of events out."""

    def __init__(self, channel: CoreChannel, options: argparse.Namespace) -> None:
        self.channel, self.options = channel, options
        self.config = channel.receive_config()
        self.layout = KvLayout(2, 2, 8, self.config.cache.block_size, self.config.dtype, options.fingerprint)
        self.inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.inbox.bind(b"\0baton-fake-" + uuid.uuid4().hex.encode())
        self.inbox.setblocking(False)
        self.running: dict[tuple[str, int], Request] = {}
        self.granted: dict[str, Request] = {}
        self.owned: set[bytes] = set()
        self.late: list[tuple[float, m.Reserve]] = []
        self.events: list[m.Event] = []

    def run(self) -> None:
        self.channel.send([m.Ready(self.layout, NUM_BLOCKS, 512)])
        while True:
            for command in self.channel.receive(self.options.step_ms / 1000):
                if isinstance(command, m.Shutdown) and not self.options.deaf:
                    return
                self.handle(command)
            self.answer_late()
            self.take_kv()
            self.expire()
            for request in list(self.running.values()):
                self.step(request)
            self.channel.send(self.events)
            self.events = []

    def handle(self, command: m.Command) -> None:
        if isinstance(command, m.AddLocal | m.AddPrefill):
            self.running[command.request_id, command.epoch] = Request(command)
        elif isinstance(command, m.Reserve) and command.request_id.startswith("slow"):
            self.late.append((time.monotonic() + SLOW_S, command))
        elif isinstance(command, m.Reserve):
            self.reserve(command)
        elif isinstance(command, m.Release):
            request = self.granted.pop(command.grant_id, None)
            if request:
                self.running.pop(request.key, None)
                self.events.append(m.Aborted(*request.key, command.fenced))
        elif isinstance(command, m.Abort):
            self.abort((command.request_id, command.epoch))
        elif isinstance(command, m.RenewLease):
            self.events.append(m.LeaseRenewed(command.call_id, self.renew(command.grant_id)))
        elif isinstance(command, m.ExtendLease):
            known = (command.request_id, command.epoch) in self.running
            self.events.append(m.LeaseExtended(command.call_id, known))
        elif isinstance(command, m.GetStats):
            blocks = BlockStats(NUM_BLOCKS, NUM_BLOCKS - len(self.granted), 0, len(self.granted), 0)
            stats = EngineStats(blocks, running=len(self.running), grants=len(self.granted), steps=7)
            problems = tuple(self.options.problem) if command.check else ()
            self.events.append(m.StatsReply(command.call_id, stats, problems))
        elif isinstance(command, m.ResetPrefixCache):
            self.events.append(m.PrefixCacheReset(command.call_id, num_blocks=11))

    def reserve(self, command: m.Reserve) -> None:
        key = (command.request_id, command.epoch)
        if len(self.granted) >= self.options.max_grants:
            self.events.append(m.Refused(*key, ErrorCode.RESOURCE_EXHAUSTED, "got no free block", 0.25))
            return
        request = Request(command)
        endpoint = KvEndpoint("nixl", self.inbox.getsockname())
        deadline_ns = time.time_ns() + int(self.config.lease.lease_s * 1e9)
        request.grant = Grant(
            uuid.uuid4().hex, key[0], self.config.worker, key[1], 1, (5, 6), self.layout, endpoint, deadline_ns
        )
        self.granted[request.grant.grant_id] = request
        self.events.append(m.Granted(*key, request.grant, CACHED_TOKENS))

    def renew(self, grant_id: str) -> int | None:
        request = self.granted.get(grant_id)
        if request is None or request.grant is None or request.key in self.running:
            return None
        deadline_ns = time.time_ns() + int(self.config.lease.lease_s * 1e9)
        request.grant = msgspec.structs.replace(request.grant, lease_deadline_unix_ns=deadline_ns)
        return deadline_ns

    def answer_late(self) -> None:
        due = [command for due_s, command in self.late if due_s <= time.monotonic()]
        self.late = self.late[len(due) :]
        for command in due:
            self.reserve(command)

    def abort(self, key: tuple[str, int]) -> None:
        self.running.pop(key, None)
        self.granted = {grant_id: request for grant_id, request in self.granted.items() if request.key != key}
        self.events.append(m.Aborted(*key, True))

    def take_kv(self) -> None:
        while True:
            try:
                ready = decode_kv_ready(self.inbox.recv(65536))
            except BlockingIOError:
                return
            request = self.granted.get(ready.grant_id)
            if request:
                request.last_token, request.position = ready.first_token, ready.sampler_position
                self.running[request.key] = request
                now = time.time_ns()
                self.events.append(m.Admitted(*request.key, request.queued_ns, ready.sent_unix_ns, now, now, 11))

    def expire(self) -> None:
        for grant_id, request in list(self.granted.items()):
            assert request.grant
            if request.key not in self.running and time.time_ns() > request.grant.lease_deadline_unix_ns:
                del self.granted[grant_id]
                message = "the lease ran out"
                self.events.append(m.Failed(*request.key, ErrorCode.DEADLINE_EXCEEDED, message, request.timeline()))

    def step(self, request: Request) -> None:
        command, sampling = request.command, request.command.sampling
        if request.key[0].startswith("hang"):
            return
        if request.key[0].startswith("fail"):
            del self.running[request.key]
            failed = m.Failed(*request.key, ErrorCode.INVALID_ARGUMENT, "got a prompt to fail on", request.timeline())
            self.events.append(failed)
            return
        request.last_token += 1
        request.first_ns = request.first_ns or time.time_ns()
        logprobs = () if sampling.num_logprobs is None else (TokenLogprobs(request.last_token, -0.5, ((1, -1.0),)),)
        self.events.append(
            m.Tokens(*request.key, request.position, (request.last_token,), logprobs, cached_tokens=CACHED_TOKENS)
        )
        request.position += 1
        reason = finish_reason(request, sampling)
        if isinstance(command, m.AddPrefill) or reason:
            del self.running[request.key]
            self.granted = {grant_id: other for grant_id, other in self.granted.items() if other is not request}
            transfer = TransferStats(2, 4096, 1, 3, 2, 1) if isinstance(command, m.AddPrefill) and not reason else None
            if isinstance(command, m.AddPrefill) and transfer:
                self.channel.send(self.events)  # the hand-over takes a batch of its own
                self.events = []
                self.hand_over(command, request.last_token)
            self.publish(command.prompt)
            self.events.append(m.Finished(*request.key, reason, request.timeline(), CACHED_TOKENS, transfer))

    def hand_over(self, command: m.AddPrefill, token: int) -> None:
        grant = command.grant
        ready = KvReady(
            grant_id=grant.grant_id,
            request_id=grant.request_id,
            epoch=grant.epoch,
            decode_incarnation=grant.decode.incarnation,
            prefill=self.config.worker,
            digests=(),
            first_token=token,
            sampler_position=1,
            sent_unix_ns=time.time_ns(),
        )
        self.inbox.sendto(encode_kv_ready(ready), grant.endpoint.metadata)

    def publish(self, prompt: tuple[int, ...]) -> None:
        hashes = block_hashes(self.layout.model_fingerprint, prompt, self.layout.block_size)
        stored = tuple(value for value in hashes if value not in self.owned)
        self.owned.update(stored)
        if stored:
            self.events.append(m.CacheChanged(stored, ()))


def finish_reason(request: Request, sampling: SamplingParams) -> FinishReason | None:
    if request.last_token in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if request.position >= sampling.max_tokens else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--refuse", help="print this as an error and exit 1 before Ready")
    parser.add_argument("--fingerprint", default="feedc0de", help="of the model that it claims to run")
    parser.add_argument("--load-s", type=float, default=0, help="take that long before Ready")
    parser.add_argument("--step-ms", type=float, default=2)
    parser.add_argument("--max-grants", type=int, default=8)
    parser.add_argument("--deaf", action="store_true", help="ignore Shutdown")
    parser.add_argument("--problem", action="append", default=[], help="what the integrity check finds")
    options = parser.parse_args()
    channel = CoreChannel(socket.socket(fileno=options.fd))
    core = FakeCore(channel, options)
    time.sleep(options.load_s)
    if options.refuse:
        print(f"noise\nerror: {options.refuse}", file=sys.stderr)
        sys.exit(1)
    try:
        core.run()
    except EOFError:
        return  # the service is gone


if __name__ == "__main__":
    main()
