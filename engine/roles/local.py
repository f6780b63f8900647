"""The aggregated role: prompts are prefilled and continued on this worker."""

import time

from baton import faults
from baton.errors import ErrorCode
from baton.faults import Point
from baton.types import EngineStats
from engine.context import EngineContext
from engine.messages import Abort, Aborted, AddLocal, Command, Finished
from engine.request import Key, Request
from engine.roles.base import IDLE_S, POLL_S, EngineRole
from engine.scheduler.base import Advanced
from engine.scheduler.decode import DecodeScheduler
from engine.scheduler.preemption import Preemption
from engine.scheduler.swap_space import SwapSpace
from engine.stepper import Stepper


class LocalRole(EngineRole):
    """Continuous batching with chunked prefill in the same steps."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        space = SwapSpace(context.runner.open_swap_space(context.config.cache.swap_space_bytes, context.costs))
        self.preemption = Preemption(context.blocks, space, context.costs)
        self.scheduler = DecodeScheduler(
            context.config.scheduler, context.blocks, context.max_model_len, self.preemption
        )
        self._stepper = Stepper(context, self.scheduler, context.overlaps_steps)

    def handle(self, command: Command) -> None:
        if isinstance(command, AddLocal):
            self._add(command)
        elif isinstance(command, Abort):
            self._abort(command)
        else:
            self.refuse(command)

    def _add(self, command: AddLocal) -> None:
        request = self.context.new_request(command)
        problem = self.context.problem_with(command)
        if problem:
            self.fail(request, ErrorCode.INVALID_ARGUMENT, problem, time.time_ns())
        elif leader := self._leader_of(request, command.fork_of):
            self.scheduler.add_fork(request, leader)
        else:
            self.scheduler.add(request)

    def _leader_of(self, request: Request, key: Key | None) -> Request | None:
        """Whose KV `request` can share, now or soon; None when it computes its own.

        That it is the same prompt is looked at here: no caller is trusted with another request's KV.
        """
        leader = self.find(key) if key and request.untold_position is None else None
        return leader if leader and leader.tokens[: len(request.tokens)] == request.tokens else None

    def find(self, key: Key) -> Request | None:
        """The request of that key, if it is to have KV here."""
        return self.scheduler.find(key)

    def _abort(self, command: Abort) -> None:
        faults.at(Point.ABORT_RECEIVED)
        request = self.scheduler.remove((command.request_id, command.epoch))
        if request:
            self.context.blocks.release(request)
        self.context.emit(Aborted(command.request_id, command.epoch, fenced=True))

    def poll(self) -> None:
        return

    def step(self) -> bool:
        outcome = self._stepper.step()
        for item in outcome.advanced:
            for event in outcome.prompt_events(item):
                self.context.emit(event)
            if item.grammar_problem:
                self._give_up(item, item.grammar_problem)
                continue
            if item.token is not None:
                self.context.emit(outcome.tokens_event(item))
            if item.finish:
                self.on_finished(item.request)
                timeline = item.request.timeline(time.time_ns())
                self.context.emit(
                    Finished(*item.request.key, item.finish, timeline, cached_tokens=item.request.num_cached_tokens)
                )
        faults.at(Point.TOKENS_SENT)
        return outcome.ran

    def _give_up(self, item: Advanced, problem: str) -> None:
        request = item.request
        if item.finish is None:
            self.scheduler.remove(request.key)
            self.context.blocks.release(request)
        self.on_finished(request)
        self.fail(request, ErrorCode.INVALID_ARGUMENT, problem, time.time_ns())

    def on_finished(self, request: Request) -> None:
        """For a role that knows more about a request than its scheduler."""

    def idle_s(self) -> float:
        return POLL_S if self.scheduler.num_waiting or self.scheduler.num_running else IDLE_S

    def stats(self) -> EngineStats:
        return self.context.stats(self.scheduler, self.preemption)

    def check_integrity(self) -> list[str]:
        problems = self.context.pool.check_integrity(self.scheduler.holders())
        return problems + self.scheduler.check_swap_space()

    def close(self) -> None:
        return
