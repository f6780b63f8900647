"""The prefill role: computes prompts in chunks, draws the first token, and hands the KV over as a grant says."""

import time

from baton.errors import BatonError, ErrorCode
from baton.types import EngineStats, Grant
from engine.context import EngineContext
from engine.handover import HandOver, LeaseOver
from engine.messages import Abort, Aborted, AddPrefill, Command, Event, Failed, Finished
from engine.request import Key
from engine.roles.base import IDLE_S, POLL_S, EngineRole
from engine.scheduler.base import Advanced
from engine.scheduler.prefill import PrefillScheduler
from engine.stepper import StepOutcome, run_step
from kv_transfer.base import KVSender, WriteDone
from kv_transfer.layout import check_compatible


class PrefillRole(EngineRole):
    """Every request holds its blocks until its last write has ended; they stay in the prefix cache afterwards."""

    def __init__(self, context: EngineContext, sender: KVSender) -> None:
        super().__init__(context)
        self.scheduler = PrefillScheduler(context.config.scheduler, context.blocks, context.max_model_len)
        self._sender = sender
        self._handovers: dict[Key, HandOver] = {}
        self._dead_peers: set[str] = set()
        self._unfenced: dict[Key, int] = {}  # attempts with a failed write, which may still land -> until when told so

    def handle(self, command: Command) -> None:
        if isinstance(command, AddPrefill):
            self._add(command)
        elif isinstance(command, Abort):
            key = (command.request_id, command.epoch)
            handover = self._handovers.get(key)
            if handover is None:
                self._emit_last(Aborted(*key, fenced=True))
            else:
                self._end(handover, [Aborted(*key, fenced=True)])
        else:
            raise self.unsupported(command)

    def _add(self, command: AddPrefill) -> None:
        request = self.context.new_request(command.request_id, command.epoch, command.prompt, command.sampling)
        peer_id = f"{command.grant.decode.name}/{command.grant.decode.incarnation}"
        try:
            self._check(command)
            self._sender.connect(peer_id, command.grant.endpoint)
        except BatonError as error:
            self.fail(request, error.code, error.message, time.time_ns())
            return
        self._dead_peers.discard(peer_id)
        self._handovers[request.key] = HandOver(self.context, self._sender, request, command.grant, peer_id)
        self.scheduler.add(request)

    def _check(self, command: AddPrefill) -> None:
        problem = self.context.problem_with(command.prompt, command.sampling)
        if problem:
            raise BatonError(ErrorCode.INVALID_ARGUMENT, problem)
        check_compatible(self.context.runner.layout, command.grant.layout)
        problem = _problem_with_grant(command.grant, self.context.blocks.blocks_for(len(command.prompt)))
        if problem:
            raise BatonError(ErrorCode.INVALID_ARGUMENT, problem)

    def step(self) -> bool:
        outcome = run_step(self.context, self.scheduler)
        for item in outcome.advanced:
            self._announce(outcome, item)
        self.context.flush()  # the first token goes out before its KV
        for item in outcome.advanced:
            handover = self._handovers.get(item.request.key)
            if handover and not handover.last_events:
                self._send(handover, item)
        return bool(outcome.advanced)

    def _announce(self, outcome: StepOutcome, item: Advanced) -> None:
        if item.token is None:
            return
        token_event = outcome.tokens_event(item)
        if item.finish is None:
            self.context.emit(token_event)
            return
        request = item.request
        timeline = request.timeline(time.time_ns())
        finished = Finished(*request.key, item.finish, timeline, cached_tokens=request.num_cached_tokens)
        self._end(self._handovers[request.key], [token_event, finished])

    def _send(self, handover: HandOver, item: Advanced) -> None:
        try:
            if item.token is None:
                handover.send_chunk()
            else:
                handover.prompt_done(item.token)
        except LeaseOver:
            self._end(handover, [self._lease_over(handover)])

    def _lease_over(self, handover: HandOver) -> Failed:
        return self._failed(
            handover,
            "the grant's lease ran out before all KV was sent; send the request again, raise --lease-s on decode, "
            "or add prefill workers",
        )

    def _failed(self, handover: HandOver, message: str) -> Failed:
        request = handover.request
        return Failed(*request.key, ErrorCode.UNAVAILABLE, message, request.timeline(time.time_ns()))

    def _end(self, handover: HandOver, last_events: list[Event]) -> None:
        """Ends a request with these events, now or when its last write has ended; the first end counts."""
        self.scheduler.remove(handover.request.key)
        if not handover.last_events:
            handover.last_events = last_events
        elif isinstance(last_events[0], Aborted):
            handover.last_events.append(last_events[0])
        self._settle(handover)

    def _settle(self, handover: HandOver) -> None:
        if handover.last_events and not handover.writing:
            del self._handovers[handover.request.key]
            self.context.blocks.release(handover.request)
            for event in handover.last_events:
                self._emit_last(event)

    def _emit_last(self, event: Event) -> None:
        if isinstance(event, Aborted):
            event = Aborted(event.request_id, event.epoch, (event.request_id, event.epoch) not in self._unfenced)
        self.context.emit(event)

    def poll(self) -> None:
        by_write = {write_id: handover for handover in self._handovers.values() for write_id in handover.write_ids}
        for done in self._sender.poll():
            self._on_write_ended(by_write[done.write_id], done)
        now = time.time_ns()
        for handover in list(self._handovers.values()):
            over = now >= handover.grant.lease_deadline_unix_ns
            if over and not handover.last_events and not handover.ready_sent:
                self._end(handover, [self._lease_over(handover)])
        for key in [key for key, until in self._unfenced.items() if until <= now and key not in self._handovers]:
            del self._unfenced[key]
        for peer_id in self._dead_peers - {handover.peer_id for handover in self._handovers.values()}:
            self._sender.disconnect(peer_id)
            self._dead_peers.discard(peer_id)

    def _on_write_ended(self, handover: HandOver, done: WriteDone) -> None:
        handover.write_ended(done)
        if done.error:
            self._unfenced[handover.request.key] = handover.grant.lease_deadline_unix_ns
        if done.error and not handover.last_events:
            name = handover.grant.decode.name
            self._dead_peers.add(handover.peer_id)
            self._end(handover, [self._failed(handover, f"KV write to decode worker {name} failed: {done.error}")])
        elif handover.last_events:
            self._settle(handover)
        elif handover.ready_sent and not handover.writing:
            request = handover.request
            self._end(
                handover,
                [
                    Finished(
                        *request.key,
                        reason=None,
                        timeline=request.timeline(time.time_ns()),
                        cached_tokens=request.num_cached_tokens,
                        transfer=handover.stats(),
                    )
                ],
            )
        else:
            try:
                handover.send_last()
            except LeaseOver:
                self._end(handover, [self._lease_over(handover)])

    def idle_s(self) -> float:
        busy = self.scheduler.num_waiting or any(handover.writing for handover in self._handovers.values())
        return POLL_S if busy else IDLE_S

    def stats(self) -> EngineStats:
        return self.context.stats(self.scheduler)

    def check_integrity(self) -> list[str]:
        return self.context.pool.check_integrity([h.request.block_ids for h in self._handovers.values()])

    def close(self) -> None:
        self._sender.close()


def _problem_with_grant(grant: Grant, num_prompt_blocks: int) -> str | None:
    expected = num_prompt_blocks - grant.first_block
    if expected < 1 or len(grant.block_ids) != expected:
        return (
            f"grant {grant.grant_id}: got {len(grant.block_ids)} blocks from block {grant.first_block} on, expected "
            f"them to cover the prompt's {num_prompt_blocks} blocks"
        )
    return None
