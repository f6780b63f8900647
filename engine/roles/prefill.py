"""The prefill role: computes prompts in chunks, draws the first token, and hands the KV over as a grant says."""

import time

from baton import faults
from baton.errors import BatonError, ErrorCode, invalid
from baton.faults import Point
from baton.types import EngineStats, Grant
from engine.context import EngineContext
from engine.handover_table import HandOverTable
from engine.messages import Abort, AddPrefill, Command, ExtendLease, Failed, Finished, LeaseExtended
from engine.roles.base import IDLE_S, POLL_S, EngineRole
from engine.scheduler.base import Advanced
from engine.scheduler.prefill import PrefillScheduler
from engine.stepper import StepOutcome, Stepper
from kv_transfer.base import KVSender
from kv_transfer.layout import check_compatible


class PrefillRole(EngineRole):
    """Computes in the scheduler's order; what is computed travels as the table of hand-overs sees fit."""

    def __init__(self, context: EngineContext, sender: KVSender) -> None:
        super().__init__(context)
        self.scheduler = PrefillScheduler(context.config.scheduler, context.blocks, context.max_model_len)
        # A peer's memory is not written in the order of this device's steps: what is sent must be computed.
        self._stepper = Stepper(context, self.scheduler, overlap=False)
        self._sender = sender
        self._handovers = HandOverTable(context, sender, self.scheduler)

    def handle(self, command: Command) -> None:
        if isinstance(command, AddPrefill):
            self._add(command)
        elif isinstance(command, Abort):
            self._handovers.abort((command.request_id, command.epoch))
        elif isinstance(command, ExtendLease):
            known = self._handovers.extend_lease((command.request_id, command.epoch), command.lease_deadline_unix_ns)
            self.context.emit(LeaseExtended(command.call_id, known))
        else:
            self.refuse(command)

    def _add(self, command: AddPrefill) -> None:
        faults.at(Point.PREFILL_ACCEPTED)
        request = self.context.new_request(command)
        try:
            problem = self.context.problem_with(command)
            if problem:
                raise invalid(problem)
            check_compatible(self.context.runner.layout, command.grant.layout)
            _check_grant(command.grant, self.context.blocks.blocks_for(request.num_given_tokens))
            self._handovers.add(request, command.grant)
        except BatonError as error:
            self.fail(request, error.code, error.message, time.time_ns())

    def poll(self) -> None:
        self._handovers.poll()

    def step(self) -> bool:
        outcome = self._stepper.step()
        for item in outcome.advanced:
            self._announce(outcome, item)
        self.context.flush()  # the first token goes out before its KV
        faults.at(Point.FIRST_TOKEN_SENT)
        for item in outcome.advanced:
            self._handovers.send(item)
        return outcome.ran

    def _announce(self, outcome: StepOutcome, item: Advanced) -> None:
        for event in outcome.prompt_events(item):
            self.context.emit(event)
        if item.token is None:
            return
        request = item.request
        if item.grammar_problem:
            timeline = request.timeline(time.time_ns())
            failed = Failed(*request.key, ErrorCode.INVALID_ARGUMENT, item.grammar_problem, timeline)
            self._handovers.end(request.key, [failed])
            return
        token_event = outcome.tokens_event(item)
        if item.finish is None:
            self.context.emit(token_event)
            return
        timeline = request.timeline(time.time_ns())
        finished = Finished(*request.key, item.finish, timeline, cached_tokens=request.num_cached_tokens)
        self._handovers.end(request.key, [token_event, finished])

    def idle_s(self) -> float:
        return POLL_S if self.scheduler.num_waiting or self._handovers.writing else IDLE_S

    def stats(self) -> EngineStats:
        return self.context.stats(self.scheduler)

    def check_integrity(self) -> list[str]:
        return self.context.pool.check_integrity(self._handovers.holders())

    def close(self) -> None:
        self._sender.close()


def _check_grant(grant: Grant, num_blocks: int) -> None:
    """What can be said without knowing the decode worker's pool."""
    expected = num_blocks - grant.first_block
    if grant.first_block < 0 or expected < 1 or len(grant.block_ids) != expected:
        raise invalid(
            f"grant {grant.grant_id}: got {len(grant.block_ids)} blocks from block {grant.first_block} on, expected "
            f"them to cover the prompt's {num_blocks} blocks, replayed output included"
        )
    if len(set(grant.block_ids)) < len(grant.block_ids):
        raise invalid(f"grant {grant.grant_id}: got a block twice, expected each once; reserve again")
