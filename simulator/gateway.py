"""A simulated gateway: the product's routing, waiting for room and retries, over workers of this process."""

import random
from collections.abc import Callable
from typing import cast

from baton.errors import BatonError, ErrorCode
from baton.types import WorkerRef
from gateway.config import Limits
from gateway.pool import Hold, Pool
from gateway.refusals import Refusals
from gateway.retry import Recovery, RetryBudget, RetryPolicy
from gateway.router import Apart
from gateway.worker_errors import WorkerFailure
from simulator.attempt import Attempt
from simulator.content import BlockKeys
from simulator.costs import MessageCosts
from simulator.decode_core import DecodeCore
from simulator.events import EventLoop
from simulator.prefill_core import PrefillCore
from simulator.records import Record
from simulator.routing import Routing, SimulatedPool, SimulatedWorker

_UNLISTED_S = 5.0  # a dead worker's record lives so long


class Gateway:
    """Takes requests; each becomes a `Journey`."""

    def __init__(
        self, loop: EventLoop, pool: SimulatedPool, routing: Routing, messages: MessageCosts, block_size: int, seed: int
    ) -> None:
        self.loop, self.pool, self.routing, self.messages = loop, pool, routing, messages
        self.block_size = block_size
        self.limits = Limits()
        self.retry_policy = RetryPolicy()
        self.budget = RetryBudget(self.retry_policy, loop.clock)
        self.random = random.Random(seed)
        self.num_retries = 0
        self.busy: dict[WorkerRef, dict[Journey, None]] = {}

    def submit(self, record: Record, keys: BlockKeys, ended: Callable[[Record], None]) -> None:
        """A client sends a request now."""
        self.budget.count_request()
        self.loop.after(self.messages.client_s, Journey(self, record, keys, ended).place)

    def worker_died(self, worker: SimulatedWorker) -> None:
        """Its connection breaks."""
        worker.core.die()
        worker.avoided = True
        self.loop.after(_UNLISTED_S, self.pool.drop, worker)
        for journey in list(self.busy.pop(worker.ref, {})):
            journey.lost(worker)


class Journey:
    """One request from its arrival at the gateway on, over all its attempts."""

    __slots__ = ("_attempt", "_ended", "_gateway", "_hold", "_recovery", "_refusals", "epoch", "keys", "loop", "record")

    def __init__(self, gateway: Gateway, record: Record, keys: BlockKeys, ended: Callable[[Record], None]) -> None:
        self._gateway, self._ended = gateway, ended
        self.record, self.keys, self.loop = record, keys, gateway.loop
        self.epoch = 1
        self._hold = Hold(cast(Pool, gateway.pool))
        self._attempt: Attempt | None = None
        self._recovery: Recovery | None = None
        self._refusals: Refusals | None = None

    @property
    def name(self) -> str:
        """Of the request, for its workers."""
        return f"{self.record.session}.{self.record.turn}"

    @property
    def messages(self) -> MessageCosts:
        """What calls cost."""
        return self._gateway.messages

    def place(self) -> None:
        """As `Placement.place`."""
        gateway, now_s = self._gateway, self.loop.now_s
        if self._refusals is None:
            self._refusals = Refusals(now_s, gateway.limits.max_reserve_wait_s)
        refused, failed = self._refusals.workers, self._recovery.failed if self._recovery else ()
        try:
            plan = gateway.routing.choose(self.keys.prompt, {*refused, *failed} if refused or failed else ())
            self._switch(plan.workers)
            if isinstance(plan, Apart):
                start_s = max(now_s, self._refusals.try_at_s(plan.decode.ref, now_s))
                prefill, decode = (cast(SimulatedWorker, worker).core for worker in plan.workers)
                self._attempt = Attempt(self, cast(DecodeCore, decode), cast(PrefillCore, prefill))
            else:
                start_s = now_s
                core = cast(SimulatedWorker, plan.worker).core
                self._attempt = Attempt(self, cast(DecodeCore, core), None)
        except BatonError as error:
            self._fail(error)
        else:
            self._attempt.start(start_s)
            for worker in self._hold.workers:
                if not cast(SimulatedWorker, worker).connected:
                    self.loop.after(self.messages.call_s, self.lost, worker)

    def _switch(self, workers: tuple[object, ...]) -> None:
        busy = self._gateway.busy
        for worker in self._hold.workers:
            busy.get(worker.ref, {}).pop(self, None)
        self._hold.switch(workers)  # type: ignore[arg-type]
        for worker in self._hold.workers:
            busy.setdefault(worker.ref, {})[self] = None

    def refused(self, worker: WorkerRef, error: BatonError) -> None:
        """A decode worker has no room."""
        assert self._refusals is not None
        try:
            self._refusals.add(worker, error, self.loop.now_s)
        except BatonError as other:
            self._fail(other)
        else:
            self.place()

    def lost(self, worker: SimulatedWorker) -> None:
        """A worker that it occupies has died."""
        attempt = self._attempt
        if attempt is None or not attempt.lost(worker.core):
            return
        died = BatonError(ErrorCode.UNAVAILABLE, f"worker {worker.name} died")
        failure = WorkerFailure(died, worker.ref, lost=True, at_work=attempt.at_work)
        gateway = self._gateway
        self._recovery = self._recovery or Recovery(gateway.retry_policy, gateway.budget, gateway.random.uniform)
        try:
            wait_s = self._recovery.after(failure, [held.ref for held in self._hold.workers])
        except BatonError as error:
            self._fail(error)
            return
        self._switch(())
        gateway.num_retries += 1
        self.epoch += 1
        self._refusals = None
        self.loop.after(wait_s + self.messages.call_s, self.place)

    def finished(self) -> None:
        """With its newest token."""
        self.record.end_s = self.loop.now_s + self.messages.token_s
        self._over()

    def _fail(self, error: BatonError) -> None:
        self.record.error, self.record.message = error.code.value.lower(), error.message
        self.record.end_s = self.loop.now_s + self.messages.client_s
        self._over()

    def _over(self) -> None:
        self._switch(())
        if self._attempt is not None:
            self._attempt.forget()
        self._attempt = None
        self.loop.at(self.record.end_s, self._ended, self.record)
