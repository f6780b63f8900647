"""A running request on its way to another decode worker: a hand-over that lets it go on for as long as it can."""

import time
from collections.abc import Callable

from baton import faults
from baton.faults import Point
from engine.context import EngineContext
from engine.handover import HandOver
from engine.messages import Event, Migrate, MigrateEnded, Moved
from engine.request import Key, Request
from engine.scheduler.base import Scheduler
from engine.scheduler.decode import DecodeScheduler
from kv_transfer.base import KVSender


class Migration(HandOver):
    """Full blocks travel while the request draws tokens. When at most one is left, it stops, and the rest goes.

    Until it stops, the request is the scheduler's, and whatever goes wrong here costs it nothing; then it is this
    hand-over's. Blocks that are being read for a write have one more reference, since the request may end meanwhile.
    """

    def __init__(
        self,
        context: EngineContext,
        sender: KVSender,
        request: Request,
        command: Migrate,
        peer_id: str,
        scheduler: DecodeScheduler,
        on_stopped: Callable[[Key], None],
    ) -> None:
        """`on_stopped`: the request has left the scheduler and will not come back."""
        super().__init__(context, sender, request, command.grant, peer_id)
        self.stopped = False
        self._command = command
        self._scheduler = scheduler
        self._on_stopped = on_stopped
        self._held: list[int] = []

    @property
    def lapsed(self) -> bool:
        """Whether the request cannot be handed on any more: it was preempted, say."""
        return not self.stopped and self._scheduler.decoding(self.request.key) is not self.request

    def advance(self) -> None:
        """Posts what is complete and not sent, or stops the request; to be called between steps.

        Raises:
            LeaseOver, BatonError: nothing was posted, and nothing can be.
        """
        if self.stopped or self.last_events or self.lapsed:
            return
        request, block_size = self.request, self._context.config.cache.block_size
        # All tokens but the newest have their KV; what a step that has not ended computes is not counted.
        num_done = len(request.tokens) - 1
        request.num_given_tokens = num_done  # which travels like a prompt
        room = self.grant.first_block + len(self.grant.block_ids)
        is_full = self._context.blocks.blocks_for(num_done + 1) > room
        unsent = (num_done - 1) // block_size - self._next_block
        if not is_full and not self._sender.begin(self.peer_id, self.grant.grant_id):
            return  # it need not stop before the receiver listens
        if not is_full and (self.writing or unsent > 1):
            if not self.writing:
                self.send_chunk()
        elif len(request.tokens) > self._command.num_reserved_tokens:  # else the next step draws what it goes on from
            self._stop()
            self.prompt_done(request.tokens[-1])

    def send_last(self) -> None:
        """Also when a write has ended. Raises as `advance`."""
        if self.stopped:
            super().send_last()
        else:
            self.advance()

    def _stop(self) -> None:
        request = self.request
        self.stopped = True
        faults.at(Point.MIGRATE_STOPPED)
        self._scheduler.remove(request.key)
        self._on_stopped(request.key)
        self._drawn_tokens = tuple(request.tokens[self._command.num_reserved_tokens : -1])

    def _post(self, end_block: int, end_token: int, first_token: int | None) -> bool:
        start_block = self._next_block
        posted = super()._post(end_block, end_token, first_token)
        if posted and not self.stopped:
            sent = self.request.block_ids[start_block : self._next_block]
            self._context.pool.share(sent)
            self._held += sent
        return posted

    @property
    def block_ids(self) -> list[int]:
        return self._held + (self.request.block_ids if self.stopped else [])

    def leave(self, scheduler: Scheduler) -> None:
        """A request that has not stopped goes on."""

    def release(self) -> None:
        self._context.pool.release(reversed(self._held))
        self._held = []
        if self.stopped:
            super().release()

    def failed(self, message: str) -> list[Event]:
        ended = [self.not_moved(message)]
        return [*super().failed(message), *ended] if self.stopped else ended

    def finished(self) -> list[Event]:
        request = self.request
        timeline = request.timeline(time.time_ns())
        return [
            Moved(*request.key, request.num_output_tokens, timeline, self.stats()),
            MigrateEnded(self._command.call_id, *request.key, moved=True),
        ]

    def not_moved(self, problem: str) -> Event:
        """The answer to its command."""
        return MigrateEnded(self._command.call_id, *self.request.key, moved=False, problem=problem)


def problem_with_migration(request: Request, command: Migrate, block_size: int) -> str | None:
    """Why a request that draws tokens here cannot be handed on as `command` says; None when it can."""
    grant, reserved = command.grant, command.num_reserved_tokens
    num_known, first, end = len(request.tokens), grant.first_block, grant.first_block + len(grant.block_ids)
    if not request.num_prompt_tokens <= reserved <= num_known:
        return f"num_reserved_tokens: got {reserved}, expected {request.num_prompt_tokens} to {num_known}"
    last = (num_known - 2) // block_size  # the newest token's KV is not computed
    if not 0 <= first <= last < end:
        return f"grant {grant.grant_id}: got blocks {first} to {end - 1}, expected block {last} to be one of them"
    if len(set(grant.block_ids)) < len(grant.block_ids):
        return f"grant {grant.grant_id}: got a block twice, expected each once; reserve again"
    return None
