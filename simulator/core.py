"""A simulated engine core: the product's scheduler and blocks, and steps that take as long as their costs say."""

import abc
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from baton.types import KvLayout
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.scheduler.base import Advanced, Scheduler, StepPlan
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.step_log import work_of
from simulator.costs import StepCosts, TurnCosts
from simulator.directory import Directory
from simulator.events import EventLoop
from simulator.network import Link

_TOKENS = [0] * 65_536  # what steps draw


class Runner(NamedTuple):
    """Stands where a core has the one that computes."""

    layout: KvLayout


class CoreContext:
    """What parts of a core share; a `GrantContext`."""

    def __init__(self, config: EngineConfig, num_blocks: int, max_model_len: int, bytes_per_token: float) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.pool = BlockPool(num_blocks, config.cache.enable_prefix_caching)
        self.blocks = RequestBlocks(self.pool, config.cache.block_size)
        self.runner = Runner(KvLayout(1, 1, 1, config.cache.block_size, "bfloat16", "simulated"))
        self.block_bytes = bytes_per_token * config.cache.block_size
        self.costs = PreemptionCosts(round(self.block_bytes))


class Step(NamedTuple):
    """One that is under way."""

    plan: StepPlan
    start_s: float
    end_s: float


class Core(abc.ABC):
    """The loop of `engine/process.py`: commands are handled between steps, then a step is planned and runs.

    With `overlap`, as in `engine/stepper.py`: a step is planned when the one before begins.
    """

    def __init__(
        self,
        loop: EventLoop,
        context: CoreContext,
        scheduler: Scheduler,
        directory: Directory,
        costs: tuple[StepCosts, TurnCosts],
        overlap: bool,
        seed: int = 0,
    ) -> None:
        self.loop, self.context, self.directory = loop, context, directory
        self.ref = context.config.worker
        self.index = directory.add_worker(self.ref)
        self.link_out, self.link_in = Link(), Link()
        self.dead = False
        self.num_steps = 0
        self.busy_s = 0.0
        self.on_step: Callable[[Core, Step], None] | None = None  # for whoever wants to see the plans
        self._scheduler = scheduler
        self._costs, self._turn_costs = costs
        self._overlap = overlap
        self._random = random.Random(f"{seed} {self.ref.name}")
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._in_flight: deque[Step] = deque()
        self._free_s = 0.0  # when the device has run all that was launched
        self._extra_s = 0.0  # of this turn, on top of its costs

    def tell(self, handle: Callable[..., None], *arguments: Any) -> None:
        """A command arrives: it is handled now, or when the step that runs has ended. A dead core hears nothing."""
        if self.dead:
            return
        if self._in_flight or self.skips:
            self._inbox.append((handle, arguments))
            self.interrupt()
        else:
            handle(*arguments)
            self._turn()

    def nudge(self) -> None:
        """Looks at its timers."""
        self.tell(_nothing)

    def _turn(self) -> None:
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for handle, arguments in inbox:
                handle(*arguments)
        self.poll()
        if self.skip():
            return
        if not self._in_flight:
            self._launch()
        if self._overlap and len(self._in_flight) == 1:
            self._launch()
        if self._in_flight:
            self.loop.at(self._in_flight[0].end_s, self._end)
        else:
            self._publish()

    def _launch(self) -> None:
        plan = self._scheduler.schedule()
        sequences = plan.sequences
        if not sequences:
            return
        turn = self._turn_costs
        planned_s = self.loop.now_s + turn.base_s + turn.sequence_s * len(sequences) + self._extra_s
        self._extra_s = 0.0
        start_s = max(planned_s, self._free_s)
        seconds = self._costs.seconds(work_of(sequences))
        if self._costs.noise:
            seconds *= self._random.choice(self._costs.noise)
        self._free_s = end_s = start_s + seconds
        self._scheduler.advance(plan)
        self._in_flight.append(Step(plan, start_s, end_s))

    def _end(self) -> None:
        if self.dead:
            return
        step = self._in_flight.popleft()
        plan, start_s, end_s = step
        if self.on_step:
            self.on_step(self, step)
        self.num_steps += 1
        self.busy_s += end_s - start_s
        advanced = self._scheduler.commit(plan, _TOKENS)
        self.committed(advanced)
        self._publish()
        self._turn()

    def _publish(self) -> None:
        stored, removed = self.context.pool.take_changes()
        if stored or removed:
            self.directory.change(self.index, stored, removed)

    @property
    def skips(self) -> bool:
        """Whether several steps are under way as one."""
        return False

    def skip(self) -> bool:
        """Takes several steps together, if it can."""
        return False

    def interrupt(self) -> None:
        """Ends that with the step that runs."""
        return

    def poll(self) -> None:
        """Looks at leases and quarantines, in each turn."""
        return

    @abc.abstractmethod
    def committed(self, advanced: Sequence[Advanced]) -> None:
        """A step has ended now."""

    def die(self) -> None:
        """Forgets everything; nobody is told."""
        self.dead = True
        self.directory.remove_worker(self.index)

    @abc.abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the block accounts; empty when all is well."""


def _nothing() -> None:
    return
