"""Requests with a grammar wait here, outside of the scheduler, until it is compiled; a bad one ends here, alone."""

import time
from typing import NamedTuple

import msgspec

from baton.errors import BatonError, ErrorCode
from baton.structured_rules import problem_with_structured
from baton.types import EngineStats
from engine.context import EngineContext, GrammarRequest
from engine.grammar.base import CompiledGrammar
from engine.grammar.compiler import Compilation
from engine.grammar.state import GrammarState
from engine.messages import (
    Abort,
    Aborted,
    AddLocal,
    AddPrefill,
    Command,
    ExtendLease,
    Failed,
    LeaseExtended,
    Refused,
    Reserve,
    Timeline,
)
from engine.request import Key
from engine.roles.base import POLL_S, EngineRole

NewRequest = AddLocal | AddPrefill | Reserve


class _Held(NamedTuple):
    command: NewRequest
    compilation: Compilation
    arrived_unix_ns: int


class GrammarGate(EngineRole):
    """Around the role that does the work. A command passes with its grammar, at once when that is cached."""

    def __init__(self, context: EngineContext, role: EngineRole) -> None:
        super().__init__(context)
        self._role = role
        self._held: dict[Key, _Held] = {}

    def handle(self, command: Command) -> None:
        if isinstance(command, NewRequest) and command.sampling.structured is not None:
            self._hold(command)
        elif isinstance(command, Abort) and (command.request_id, command.epoch) in self._held:
            del self._held[command.request_id, command.epoch]
            self.context.emit(Aborted(command.request_id, command.epoch, fenced=True))
        elif isinstance(command, ExtendLease) and (command.request_id, command.epoch) in self._held:
            self._extend_lease(command)
        else:
            self._role.handle(command)

    def _hold(self, command: NewRequest) -> None:
        assert command.sampling.structured is not None
        now = time.time_ns()
        problem = problem_with_structured(command.sampling.structured)
        if problem:
            self._reject(command, BatonError(ErrorCode.INVALID_ARGUMENT, problem), now)
            return
        held = _Held(command, self.context.grammars.start(command.sampling.structured), now)
        if held.compilation.result is None:
            self._held[command.request_id, command.epoch] = held
        else:
            self._pass_on(held, held.compilation.result)

    def _extend_lease(self, command: ExtendLease) -> None:
        """Waiting for a grammar must not cost a request its grant either."""
        key = (command.request_id, command.epoch)
        held = self._held[key]
        known = isinstance(held.command, AddPrefill)
        if isinstance(held.command, AddPrefill):
            grant = held.command.grant
            end = max(grant.lease_deadline_unix_ns, command.lease_deadline_unix_ns)
            grant = msgspec.structs.replace(grant, lease_deadline_unix_ns=end)
            self._held[key] = held._replace(command=msgspec.structs.replace(held.command, grant=grant))
        self.context.emit(LeaseExtended(command.call_id, known))

    def poll(self) -> None:
        if self._held:
            self.context.grammars.poll()
            for key, held in list(self._held.items()):
                if held.compilation.result is not None:
                    del self._held[key]
                    self._pass_on(held, held.compilation.result)
        self._role.poll()

    def _pass_on(self, held: _Held, result: CompiledGrammar | BatonError) -> None:
        command = held.command
        if isinstance(result, BatonError):
            self._reject(command, result, held.arrived_unix_ns)
            return
        spec, ends = self.context.spec, command.sampling.stop_token_ids
        grammar = GrammarState(
            result,
            spec.vocab_size,
            ends=[token for token in spec.eos_token_ids if token in ends],
            held_back=[token for token in spec.eos_token_ids if token not in ends],
        )
        grammar.catch_up(command.output)
        if grammar.problem or grammar.over:
            over = (
                "the output is complete"
                if command.output
                else "the grammar allows the empty text only; drop structured"
            )
            problem = grammar.problem or over
            self._reject(command, BatonError(ErrorCode.INVALID_ARGUMENT, problem), held.arrived_unix_ns)
            return
        self.context.with_grammar = GrammarRequest(grammar, held.arrived_unix_ns)
        try:
            self._role.handle(command)
        finally:
            self.context.with_grammar = None

    def _reject(self, command: NewRequest, error: BatonError, arrived_unix_ns: int) -> None:
        key = (command.request_id, command.epoch)
        if isinstance(command, Reserve):
            self.context.emit(Refused(*key, error.code, error.message, error.retry_after_s))
        else:
            timeline = Timeline(queued_unix_ns=arrived_unix_ns, finished_unix_ns=time.time_ns())
            self.context.emit(Failed(*key, error.code, error.message, timeline))

    def step(self) -> bool:
        return self._role.step()

    def idle_s(self) -> float:
        return min(POLL_S, self._role.idle_s()) if self._held else self._role.idle_s()

    def stats(self) -> EngineStats:
        stats = self._role.stats()
        return msgspec.structs.replace(stats, waiting=stats.waiting + len(self._held))

    def check_integrity(self) -> list[str]:
        return self._role.check_integrity()

    def close(self) -> None:
        self._role.close()
