"""All hand-overs of one sending worker, each from its request's arrival until no write of it is under way."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from baton import faults
from baton.errors import BatonError, invalid
from baton.faults import Point
from baton.types import Grant
from engine.context import EngineContext
from engine.handover import HandOver, LeaseOver
from engine.messages import Aborted, Event, MigrateEnded
from engine.peers import Peers
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler
from kv_transfer.base import KVSender, WriteDone

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=HandOver)

_LEASE_OVER = (
    "the grant's lease ran out before all KV was sent; send the request again, raise --lease-s on decode, or add "
    "prefill workers"
)


class HandOverTable:
    """Owns the requests and sends their last events. Every request holds its blocks until its last write has ended.

    Whatever ends a request, its last events are held back until no write of it is under way: so `Finished`, `Failed`
    and a fenced `Aborted` all say that this side has stopped. Only a write that takes longer than any may is not waited
    for: its request fails, any `Aborted` says unfenced, and the blocks, which may still be read, stay held.
    """

    def __init__(self, context: EngineContext, sender: KVSender, scheduler: Scheduler) -> None:
        self._context = context
        self._sender = sender
        self._scheduler = scheduler
        self._peers = Peers(sender)
        self._open: dict[Key, HandOver] = {}
        self._hung: list[HandOver] = []  # their last events are sent, but a write is still under way
        self._unfenced: dict[Key, int] = {}  # attempts with a failed or hung write -> until when told so

    def add(self, request: Request, grant: Grant) -> None:
        """Connects to the grant's worker and queues the request.

        Raises:
            BatonError: as `open`.
        """
        self.open(grant, lambda peer_id: HandOver(self._context, self._sender, request, grant, peer_id))
        self._scheduler.add(request)

    def open(self, grant: Grant, make: Callable[[str], H]) -> H:
        """Connects to the grant's worker and takes the hand-over that `make` makes for that peer id.

        Raises:
            BatonError: the worker cannot be reached, or the grant names blocks that it does not have.
        """
        peer_id, num_blocks = self._peers.connect(grant.decode, grant.endpoint)
        outside = [block for block in grant.block_ids if not 0 <= block < num_blocks]
        if outside:
            raise invalid(
                f"grant {grant.grant_id}: got block {outside[0]}, expected 0 to {num_blocks - 1}, the blocks of decode "
                f"worker {grant.decode.name}; reserve again"
            )
        handover = make(peer_id)
        self._open[handover.request.key] = handover
        return handover

    def send(self, item: Advanced) -> None:
        """Posts what a step has completed, unless the request is over."""
        handover = self._open.get(item.request.key)
        if handover is None or handover.last_events:
            return
        token = item.token
        if token is None:
            self.attempt(handover, handover.send_chunk)
        else:
            self.attempt(handover, lambda: handover.prompt_done(token))

    def attempt(self, handover: HandOver, send: Callable[[], None]) -> None:
        """Calls what posts something of an open hand-over; ends it when nothing may be posted any more."""
        try:
            send()
        except LeaseOver:
            self._fail(handover, _LEASE_OVER)
        except BatonError as error:  # decode cannot be told of writes any more
            self._peers.lose(handover.peer_id)
            self._fail(handover, error.message)

    def __contains__(self, key: Key) -> bool:
        """Whether the last events of that key's hand-over are still to come."""
        return key in self._open

    def end(self, key: Key, last_events: list[Event]) -> None:
        """Ends an open request with these events, now or when its last write has ended."""
        self._end(self._open[key], last_events)

    def abort(self, key: Key) -> None:
        """Stops an attempt, known or not; answers when no write of it is under way."""
        faults.at(Point.ABORT_RECEIVED)
        handover = self._open.get(key)
        if handover is None:
            self._emit(Aborted(*key, fenced=True))
        elif handover.last_events:
            handover.last_events.append(Aborted(*key, fenced=True))
        else:
            self._end(handover, [Aborted(*key, fenced=True)])

    def extend_lease(self, key: Key, deadline_unix_ns: int) -> bool:
        """Decode has promised to wait until then; False when nothing is to be written (any more)."""
        handover = self._open.get(key)
        if handover is None or not handover.has_more_to_write:
            return False
        handover.extend_lease(deadline_unix_ns)
        return True

    def poll(self) -> None:
        """Looks at writes, leases and peers; returns at once."""
        ended = self._sender.poll()
        if ended:
            by_write = {write_id: handover for handover in self._all() for write_id in handover.write_ids}
            for done in ended:
                self._on_write_ended(by_write[done.write_id], done)
        for handover in [handover for handover in self._open.values() if handover.hangs]:
            self._give_up(handover)
        now = time.time_ns()
        for handover in [handover for handover in self._open.values() if handover.has_more_to_write]:
            if now >= handover.grant.lease_deadline_unix_ns:
                self._fail(handover, _LEASE_OVER)
            elif self._peers.is_lost(handover.peer_id):
                name = handover.grant.decode.name
                self._fail(
                    handover, f"another KV write to decode worker {name} failed or hangs; send the request again"
                )
            elif handover.waits_too_long:
                self._peers.lose(handover.peer_id)
                self._fail(
                    handover,
                    f"decode worker {handover.grant.decode.name} does not listen for KV writes; send the request "
                    "again, and check that worker",
                )
            elif handover.waits:
                self.attempt(handover, handover.send_waiting)
        self._forget_unfenced(now)
        if self._peers.any_to_leave:
            self._peers.leave_unused({handover.peer_id for handover in self._all()})

    @property
    def writing(self) -> bool:
        """Whether a write is under way that is waited for, or waits to be posted."""
        return any(handover.writing or handover.waits for handover in self._open.values())

    def holders(self) -> list[list[int]]:
        """The block lists of all requests, for the integrity check."""
        return [handover.block_ids for handover in self._all()]

    def _all(self) -> list[HandOver]:
        return [*self._open.values(), *self._hung]

    def _on_write_ended(self, handover: HandOver, done: WriteDone) -> None:
        faults.at(Point.KV_WRITE_DONE)
        handover.write_ended(done)
        if done.error:
            self._distrust(handover)
        if handover.last_events:
            self._settle(handover)
        elif done.error:
            self._fail(handover, f"KV write to decode worker {handover.grant.decode.name} failed: {done.error}")
        elif handover.ready_sent:
            self._end(handover, handover.finished())
        elif not self._peers.is_lost(handover.peer_id):
            self.attempt(handover, handover.send_last)

    def _distrust(self, handover: HandOver) -> None:
        """A write of it may land later: decode must hear so until it has waited for that itself; its peer is lost."""
        lease = self._context.config.lease
        quarantine_end = lease.quarantine_end_unix_ns(handover.grant.lease_deadline_unix_ns)
        # That is by decode's clock, which can be behind this one.
        self._unfenced[handover.request.key] = quarantine_end + int(lease.clock_margin_s * 1e9)
        self._peers.lose(handover.peer_id)

    def _forget_unfenced(self, now_unix_ns: int) -> None:
        if self._unfenced:
            kept = {handover.request.key for handover in self._all()}
            self._unfenced = {key: until for key, until in self._unfenced.items() if until > now_unix_ns or key in kept}

    def _give_up(self, handover: HandOver) -> None:
        """A write takes too long, because its peer hangs: ends the request for the service."""
        lease, name = self._context.config.lease, handover.grant.decode.name
        limit_s = lease.longest_write_s + lease.clock_margin_s
        message = f"a KV write to decode worker {name} has taken more than {limit_s:g} s; send the request again, and "
        message += "check that worker or raise --longest-write-s"
        logger.warning("request %s: %s", handover.request.key[0], message)
        self._distrust(handover)
        self._fail(handover, message)
        self._hung.append(handover)
        self._close(handover)

    def _fail(self, handover: HandOver, message: str) -> None:
        self._end(handover, handover.failed(message))

    def _end(self, handover: HandOver, last_events: list[Event]) -> None:
        """The first end counts."""
        if not handover.last_events:
            handover.last_events = last_events
            handover.leave(self._scheduler)
            self._settle(handover)

    def _settle(self, handover: HandOver) -> None:
        """Lets go of a request that is over, unless a write of it is under way."""
        if handover.writing:
            return
        if handover.request.key not in self._unfenced:  # what has failed ends when the peer is disconnected
            faults.at(Point.KV_END)
            self._sender.end(handover.peer_id, handover.grant.grant_id)
        if handover in self._hung:
            self._hung.remove(handover)
        else:
            self._close(handover)
        handover.release()

    def _close(self, handover: HandOver) -> None:
        del self._open[handover.request.key]
        for event in handover.last_events:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        if isinstance(event, Aborted | MigrateEnded):
            fenced = (event.request_id, event.epoch) not in self._unfenced
            event = msgspec.structs.replace(event, fenced=fenced)
        self._context.emit(event)
