"""The policy `cost`: what each choice is expected to take, in seconds, by models of each worker fitted online."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from baton.types import Role, WorkerRef
from gateway.routing.base import Apart, Choice, Fleet, Merit, Policy, Query
from gateway.routing.claim import Claim, Outcome
from gateway.routing.fit import Line, LineFit

if TYPE_CHECKING:
    from gateway.worker import Worker

# Where nothing is known. Wrong by much on any given machine, but equal for all workers, so that load and prefix decide.
_PREFILL = Line(base_s=0.01, slope_s=100e-6)  # by the uncached token
_HAND_OVER = Line(base_s=0.005, slope_s=1e-6)  # by the token that travels
_ITL = Line(base_s=0.01, slope_s=50e-6)  # by the request that runs beside
_OUTPUT_TOKENS = 128.0
_FEW = 4  # prompts
_MAX_KEPT = 4096  # workers, the least recently used are forgotten


class _Model:
    """What is known of one life of one worker, and what it has to do for this gateway."""

    def __init__(self, all_workers: LineFit) -> None:
        """`all_workers`: the prefill of the whole fleet, for as long as little is known of this one."""
        self._all_workers = all_workers
        self._prefill = LineFit(_PREFILL, prior_x=256)
        self.hand_over = LineFit(_HAND_OVER, prior_x=256)  # to it
        self.itl = LineFit(_ITL, prior_x=1)
        self.queued_tokens = 0  # to prefill, of requests without a first token

    @property
    def prefill(self) -> Line:
        """By the uncached token."""
        return (self._prefill if self._prefill.num_added >= _FEW else self._all_workers).line

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """One prompt has taken so long, with what was queued before it."""
        self._prefill.add(tokens, seconds)
        self._all_workers.add(tokens, seconds)

    def wait_s(self) -> float:
        """Until what is queued is prefilled."""
        return self.queued_tokens * self.prefill.slope_s


class Cost(Policy):
    """Queueing + uncached tokens * s/token + hand-over + harm to running decodes; the least is taken, of any shape.

    Harm: one request more in a batch slows every other by the slope of the inter-token latency, each for the
    output it has to come; a prefill in a decode worker's steps holds its running requests up for as long as it takes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: OrderedDict[WorkerRef, _Model] = OrderedDict()
        self._all_workers = LineFit(_PREFILL, prior_x=256)
        self._output_tokens = _OUTPUT_TOKENS  # a request's, a moving mean

    def begin(self, fleet: Fleet, query: Query) -> None:
        while len(self._models) > _MAX_KEPT:
            self._models.popitem(last=False)

    def prefill_merit(self, worker: Worker, query: Query) -> Merit:
        model = self._model(worker.ref)
        return (model.wait_s() + model.prefill.at(query.uncached_tokens(worker)),)

    def decode_merit(self, worker: Worker, query: Query) -> Merit:
        model = self._model(worker.ref)
        # What waits to be prefilled on it, alone, is in the way of its decodes too.
        return (model.hand_over.line.at(query.uncached_tokens(worker)) + self._harm_s(model, worker) + model.wait_s(),)

    def local_merit(self, worker: Worker, query: Query) -> Merit:
        model = self._model(worker.ref)
        prefill_s = model.prefill.at(query.uncached_tokens(worker))
        return (model.wait_s() + prefill_s * (1 + worker.in_flight) + self._harm_s(model, worker),)

    def pair_merit(self, prefill: Merit, decode: Merit) -> Merit:
        return (prefill[0] + decode[0],)

    def alone_merit(self, role: Role, local: Merit) -> Merit:
        return local

    def price_s(self, merit: Merit) -> float:
        return merit[0]

    def take(self, choice: Choice, query: Query) -> Claim:
        """Counts the request as load of its workers, and fits their models when it has ended well."""
        plan = choice.plan
        prefiller, decoder = (plan.prefill, plan.decode) if isinstance(plan, Apart) else (plan.worker, plan.worker)
        computes, decodes = self._model(prefiller.ref), self._model(decoder.ref)
        ahead = computes.queued_tokens
        uncached = query.uncached_tokens(prefiller)
        beside = decoder.in_flight
        computes.queued_tokens += uncached

        def first() -> None:
            computes.queued_tokens -= uncached

        def over(outcome: Outcome | None) -> None:
            if outcome is None:
                return
            computes.add_prefill(ahead + query.num_tokens - outcome.cached_tokens, outcome.prefill_s)
            if outcome.handed_over_tokens:
                decodes.hand_over.add(outcome.handed_over_tokens, outcome.hand_over_s)
            if outcome.num_output_tokens > 1:
                decodes.itl.add((beside + decoder.in_flight) / 2, outcome.decode_s / (outcome.num_output_tokens - 1))
            self._output_tokens += (outcome.num_output_tokens - self._output_tokens) / 32

        return Claim(self._clock, first, over)

    def _harm_s(self, model: _Model, worker: Worker) -> float:
        """To it and by it: `in_flight` has the requests that are still to come to its batch, too."""
        return model.itl.line.slope_s * worker.in_flight * self._output_tokens

    def _model(self, ref: WorkerRef) -> _Model:
        model = self._models.get(ref)
        if model is None:
            model = self._models[ref] = _Model(self._all_workers)
        else:
            self._models.move_to_end(ref)
        return model
