"""A simulated decode worker's core, which serves whole requests, too: the aggregated role."""

import array
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from baton.errors import BatonError
from baton.types import FinishReason, KvEndpoint
from engine.grants import GrantTable, OpenGrant
from engine.request import Request
from engine.scheduler.base import Advanced, StepPlan
from engine.scheduler.policy import make_policy
from engine.scheduler.preemption import Preemption
from engine.scheduler.swap_space import SwapSpace
from simulator.core import Core, CoreContext, Step
from simulator.costs import Costs
from simulator.directory import Directory
from simulator.events import EventLoop
from simulator.request import SimulatedRequest
from simulator.skipping import SkippingScheduler, Stretch, decode_seconds


class TokenOwner(Protocol):
    """Who hears of a request's tokens."""

    def drawn(self, log: "array.array[float]", start: int, end: int) -> None:
        """One token at each of the log's moments from `start` to before `end`, in seconds."""
        ...

    def finished(self, reason: FinishReason) -> None:
        """With the newest token."""
        ...


class DecodeCore(Core):
    """Notes when each of its steps ended. A request's tokens are those of a stretch of steps, so they cost nothing."""

    def __init__(
        self,
        loop: EventLoop,
        context: CoreContext,
        directory: Directory,
        costs: Costs,
        skip_uneventful: bool = True,
        seed: int = 0,
    ) -> None:
        scheduler_config = context.config.scheduler
        preemption = Preemption(context.blocks, SwapSpace(0), context.costs, loop.now_ns)
        self.scheduler = SkippingScheduler(
            scheduler_config,
            context.blocks,
            context.max_model_len,
            preemption,
            make_policy(scheduler_config, loop.clock),
        )
        super().__init__(
            loop, context, self.scheduler, directory, (costs.decode, costs.decode_turn), costs.overlap, seed
        )
        self.preemption = preemption
        self.grants = GrantTable(context, KvEndpoint("simulated", b""))
        self.log: array.array[float] = array.array("d")
        self._skip_uneventful = skip_uneventful and not costs.decode.noise
        self._stretch: Stretch | None = None
        self._received_token_s = costs.decode_turn.received_token_s
        self._streaming: dict[SimulatedRequest, None] = {}  # who gets a token in each step, since `log_start`

    def add(self, request: SimulatedRequest) -> None:
        """Serves a whole request."""
        self.scheduler.add(request)

    def reserve(
        self,
        request: SimulatedRequest,
        granted: Callable[[OpenGrant], None],
        refused: Callable[[BatonError], None],
    ) -> None:
        """As `Reserve`."""
        num_running = self.scheduler.num_running + self.scheduler.num_waiting
        try:
            entry = self.grants.reserve(request, num_running, self.loop.now_ns())
        except BatonError as error:
            refused(error)
        else:
            granted(entry)

    def ready(self, grant_id: str) -> None:
        """As KvReady: the KV of a grant is here. Without the grant, nothing."""
        entry = self.grants.by_id(grant_id)
        if entry is None:
            self.context.pool.lift(grant_id)
            return
        request = self.grants.accept(entry)
        num_tokens = request.num_given_tokens
        self._extra_s += self._received_token_s * (num_tokens - entry.num_hit_blocks * self.context.blocks.block_size)
        request.num_computed_tokens = num_tokens
        self.context.blocks.register(request)
        request.tokens.append(0)
        self.scheduler.admit(request)

    def release(self, grant_id: str, fenced: bool) -> None:
        """Gives an open grant back."""
        entry = self.grants.by_id(grant_id)
        if entry is not None:
            self.grants.close(entry, fenced)
            if not fenced:
                end_ns = self.context.config.lease.quarantine_end_unix_ns(entry.grant.lease_deadline_unix_ns)
                self.loop.at((end_ns - self.loop.EPOCH_NS) / 1e9 + 1e-6, self.nudge)

    def poll(self) -> None:
        self.context.pool.expire_quarantine(self.loop.now_ns(), lambda fence_id: False)

    @property
    def skips(self) -> bool:
        return self._stretch is not None

    def skip(self) -> bool:
        scheduler, in_flight = self.scheduler, len(self._in_flight)
        if (
            not self._skip_uneventful
            or in_flight != self._overlap
            or self._extra_s
            or scheduler.num_decodes != len(self._streaming)
            or (count := scheduler.num_uneventful(in_flight)) < 2
        ):
            return False
        num_decodes = scheduler.num_decodes
        context = sum(request.num_computed_tokens for request in self._streaming) + num_decodes
        turn_s = self._turn_costs.base_s + self._turn_costs.sequence_s * num_decodes
        starts, ends = ([step.start_s for step in self._in_flight], [step.end_s for step in self._in_flight])
        planned_s, free_s = self.loop.now_s, self._free_s
        for seconds in decode_seconds(self._costs, num_decodes, context, count):
            start_s = max(planned_s + turn_s, free_s)
            planned_s = free_s if in_flight else start_s + seconds
            free_s = start_s + seconds
            starts.append(start_s)
            ends.append(free_s)
        self._in_flight.clear()
        self._stretch = Stretch(starts, ends, in_flight)
        self.loop.at(self._stretch.end_s, self._land, self._stretch)
        return True

    def interrupt(self) -> None:
        if self._stretch and self._stretch.cut(self.loop.now_s):
            self.loop.at(self._stretch.end_s, self._land, self._stretch)

    def _land(self, stretch: Stretch) -> None:
        """The stretch is over, unless it was cut meanwhile: then it was before, or is another's."""
        if self.dead or stretch is not self._stretch or stretch.end_s != self.loop.now_s:
            return
        self._stretch = None
        count, starts_s, ends_s = stretch.count, stretch.starts_s, stretch.ends_s
        if self.on_step:
            plan = StepPlan(self.scheduler.decodes)
            for start_s, end_s in zip(starts_s[:count], ends_s, strict=False):
                self.on_step(self, Step(plan, start_s, end_s))
        self.scheduler.skip(count)
        self.num_steps += count
        self.busy_s += sum(ends_s[:count]) - sum(starts_s[:count])
        self.log.extend(ends_s[:count])
        if stretch.in_flight:
            self._in_flight.append(Step(StepPlan(self.scheduler.decodes), starts_s[-1], ends_s[-1]))
        self._free_s = ends_s[-1]
        self._turn()

    def committed(self, advanced: Sequence[Advanced]) -> None:
        log, streaming = self.log, self._streaming
        index = len(log)
        log.append(self.loop.now_s)
        num_drawn = 0
        ended: list[SimulatedRequest] = []
        for item in advanced:
            if item.token is None:
                continue
            num_drawn += 1
            request = cast(SimulatedRequest, item.request)
            if request.log_start < 0:
                request.log_start = index
                streaming[request] = None
            if item.finish is not None:
                ended.append(request)
        if num_drawn != len(streaming):
            self._note_gaps(advanced, index)
        for request in ended:
            del streaming[request]
            owner = cast(TokenOwner, request.owner)
            owner.drawn(log, request.log_start, index + 1)
            owner.finished(FinishReason.LENGTH)

    def _note_gaps(self, advanced: Sequence[Advanced], index: int) -> None:
        """Somebody who had a token in the step before has none in this one: stalled, or preempted."""
        drawn: set[Request] = {item.request for item in advanced if item.token is not None}
        for request in [request for request in self._streaming if request not in drawn]:
            self._close(request, index)

    def _close(self, request: SimulatedRequest, end: int) -> None:
        del self._streaming[request]
        cast(TokenOwner, request.owner).drawn(self.log, request.log_start, end)
        request.log_start = -1

    def die(self) -> None:
        if stretch := self._stretch:
            ended = stretch.num_ended(self.loop.now_s)
            self.log.extend(stretch.ends_s[:ended])
        for request in list(self._streaming):
            self._close(request, len(self.log))
        super().die()

    def check_integrity(self) -> list[str]:
        return self.context.pool.check_integrity([*self.scheduler.holders(), *self.grants.holders()])
