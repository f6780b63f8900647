"""The decode role: grants room for prompts prefilled elsewhere, verifies their KV, and continues them."""

import logging
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from baton import faults
from baton.convert import decode_kv_ready
from baton.errors import BatonError, ErrorCode
from baton.faults import Point
from baton.types import EngineStats, KvReady
from baton_kernels.digest import digest_add, kv_digest
from engine.context import EngineContext
from engine.grants import GrantTable, OpenGrant
from engine.messages import (
    Abort,
    Aborted,
    Admitted,
    Command,
    Granted,
    LeaseRenewed,
    Migrate,
    Refused,
    Release,
    RenewLease,
    Reserve,
)
from engine.migrations import Migrations
from engine.request import Key, Request
from engine.roles.base import POLL_S
from engine.roles.local import LocalRole
from engine.step_log import ReceivedRecord
from kv_transfer.base import KVReceiver, KVSender

logger = logging.getLogger(__name__)


class DecodeRole(LocalRole):
    """Adds grants to the aggregated role, whose scheduler also recomputes preempted requests here."""

    def __init__(
        self, context: EngineContext, receiver: KVReceiver, open_sender: Callable[[], KVSender] | None = None
    ) -> None:
        """`open_sender` makes what running requests are handed on with, when the first one is."""
        super().__init__(context)
        self._migrations = Migrations(context, self.scheduler, open_sender, self._unlink)
        self._receiver = receiver
        self._grants = GrantTable(context, receiver.endpoint())
        self._admitted: dict[str, Key] = {}  # grant id -> running request
        self._grant_of: dict[Key, str] = {}
        self._num_mismatches = 0

    def handle(self, command: Command) -> None:
        if isinstance(command, Reserve):
            self._reserve(command)
        elif isinstance(command, Release):
            self._release(command)
        elif isinstance(command, RenewLease):
            faults.at(Point.RENEW_RECEIVED)
            self.context.emit(LeaseRenewed(command.call_id, self._grants.renew(command.grant_id, time.time_ns())))
        elif isinstance(command, Migrate):
            self._migrations.start(command)
        elif isinstance(command, Abort) and (entry := self._grants.by_key((command.request_id, command.epoch))):
            self._end_grant(entry, fenced=False)
        else:
            super().handle(command)

    def _reserve(self, command: Reserve) -> None:
        faults.at(Point.RESERVE_RECEIVED)
        context = self.context
        request = context.new_request(command)
        request.num_told_positions = request.num_prompt_tokens  # by its prefill worker
        problem = context.problem_with(command)
        if problem:
            context.emit(Refused(*request.key, ErrorCode.INVALID_ARGUMENT, problem))
            return
        try:
            num_running = self.scheduler.num_running + self.scheduler.num_waiting
            entry = self._grants.reserve(request, num_running, time.time_ns(), command.num_extra_tokens)
        except BatonError as error:
            context.emit(Refused(*request.key, error.code, error.message, error.retry_after_s))
            return
        context.emit(Granted(*request.key, entry.grant, request.num_cached_tokens))

    def _release(self, command: Release) -> None:
        faults.at(Point.RELEASE_RECEIVED)
        if entry := self._grants.by_id(command.grant_id):
            self._end_grant(entry, command.fenced)
        elif command.grant_id in self._admitted:
            super().handle(Abort(*self._admitted[command.grant_id]))
        elif command.fenced:
            self.context.pool.lift(command.grant_id)

    def find(self, key: Key) -> Request | None:
        entry = self._grants.by_key(key)
        return entry.request if entry else super().find(key)

    def _close_grant(self, entry: OpenGrant, fenced: bool) -> None:
        self._grants.close(entry, fenced)
        self.scheduler.abandon(entry.request.key)

    def _end_grant(self, entry: OpenGrant, fenced: bool) -> None:
        self._close_grant(entry, fenced)
        self.context.emit(Aborted(*entry.request.key, fenced=fenced))

    def _abort(self, command: Abort) -> None:
        key = (command.request_id, command.epoch)
        self._unlink(key)
        if not self._migrations.abort(key):
            super()._abort(command)

    def on_finished(self, request: Request) -> None:
        self._unlink(request.key)
        self._migrations.request_ended(request.key)

    def _unlink(self, key: Key) -> None:
        grant_id = self._grant_of.pop(key, None)
        if grant_id:
            del self._admitted[grant_id]

    def poll(self) -> None:
        for sender, notification in self._receiver.poll():
            for payload in faults.messages(Point.KV_READY_RECEIVED, notification):
                try:
                    ready = decode_kv_ready(payload)
                except DecodeError:
                    logger.warning("dropped a notification from %s that is no KvReady", sender)
                    continue
                self._on_ready(ready, time.time_ns())
        self._migrations.poll()
        now = time.time_ns()
        self.context.pool.expire_quarantine(now, self._receiver.writing)
        for entry in self._grants.expired(now):
            self._close_grant(entry, fenced=False)
            lease_s = self.context.config.lease.lease_s
            logger.warning("request %s: its lease of %g s ended without KV", entry.request.key[0], lease_s)
            self.fail(
                entry.request,
                ErrorCode.UNAVAILABLE,
                f"no KV arrived within the lease of {lease_s:g} s; send the request again, or raise --lease-s",
                now,
            )

    def _on_ready(self, ready: KvReady, received_unix_ns: int) -> None:
        entry = self._grants.match(ready)
        if entry is None:
            # Its writer is done with these blocks, whatever became of the request.
            self.context.pool.lift(ready.grant_id)
            logger.info("dropped KvReady of request %s epoch %d: no such grant", ready.request_id, ready.epoch)
            return
        start = time.perf_counter()
        problem = self._problem_with_kv(ready, entry)
        verify_us = int((time.perf_counter() - start) * 1e6)
        if self.context.step_log:
            num_tokens = entry.request.num_given_tokens - entry.num_hit_blocks * self.context.blocks.block_size
            self.context.step_log.add(ReceivedRecord(num_tokens, verify_us))
        faults.at(Point.KV_VERIFIED)
        if problem:
            self._num_mismatches += 1
            logger.error("request %s: %s", ready.request_id, problem)
            self._close_grant(entry, fenced=False)
            self.fail(entry.request, ErrorCode.UNAVAILABLE, f"{problem}; send the request again", time.time_ns())
            return
        self._admit(ready, self._grants.accept(entry), entry, received_unix_ns, verify_us)

    def _problem_with_kv(self, ready: KvReady, entry: OpenGrant) -> str | None:
        """Whether the transferred KV is exactly this request's: all wanted tokens covered once, digests equal."""
        request, block_size = entry.request, self.context.config.cache.block_size
        start = expected_start = entry.num_hit_blocks * block_size
        total = 0
        for chunk in ready.digests:
            if chunk.start_token != expected_start:
                return f"KV digests skip from token {expected_start} to {chunk.start_token}"
            expected_start += chunk.num_tokens
            total = digest_add(total, chunk.digest)
        num_tokens = request.num_given_tokens + len(ready.drawn_tokens)
        if expected_start != num_tokens or num_tokens > len(request.block_ids) * block_size:
            return f"KV digests end at token {expected_start}, expected {num_tokens}"
        drawn, vocab_size = (*ready.drawn_tokens, ready.first_token), self.context.spec.vocab_size
        next_position = request.num_output_tokens + len(drawn)  # what the sender has drawn is not among the tokens yet
        if not all(0 <= token < vocab_size for token in drawn) or ready.sampler_position != next_position:
            return "KvReady names an impossible token or sampler position"
        granted = request.block_ids[entry.num_hit_blocks : self.context.blocks.blocks_for(num_tokens)]
        got = kv_digest(self.context.runner.pool, granted, start, num_tokens - start)
        return None if got == total else f"KV digest mismatch: got {got:016x}, expected {total:016x}"

    def _admit(self, ready: KvReady, request: Request, entry: OpenGrant, received_unix_ns: int, verify_us: int) -> None:
        context, block_size = self.context, self.context.config.cache.block_size
        request.tokens += ready.drawn_tokens
        request.num_given_tokens = len(request.tokens)
        if tail := request.num_given_tokens % block_size:
            context.runner.clear_tail(request.block_ids[request.num_given_tokens // block_size], tail)
        request.num_computed_tokens = request.num_given_tokens
        context.blocks.register(request)
        request.tokens.append(ready.first_token)
        self._admitted[ready.grant_id] = request.key
        self._grant_of[request.key] = ready.grant_id
        now = time.time_ns()
        request.started_unix_ns = now
        self.scheduler.admit(request)
        context.emit(
            Admitted(*request.key, entry.reserved_unix_ns, ready.sent_unix_ns, received_unix_ns, now, verify_us)
        )
        faults.at(Point.ADMITTED)

    def step(self) -> bool:
        computed = super().step()
        self._migrations.after_step()
        return computed

    def idle_s(self) -> float:
        return POLL_S if len(self._grants) or self._migrations.under_way else super().idle_s()

    def stats(self) -> EngineStats:
        return self.context.stats(self.scheduler, self.preemption, len(self._grants), self._num_mismatches)

    def check_integrity(self) -> list[str]:
        holders = [*self.scheduler.holders(), *self._grants.holders(), *self._migrations.holders()]
        problems = self.context.pool.check_integrity(holders)
        return problems + self.scheduler.check_swap_space()

    def close(self) -> None:
        self._migrations.close()
        self._receiver.close()
