"""One attempt to serve a simulated request: on a pair of workers, or on one."""

import array
from typing import TYPE_CHECKING

from baton.errors import BatonError
from baton.types import FinishReason
from engine.grants import OpenGrant
from simulator.decode_core import DecodeCore
from simulator.prefill_core import PrefillCore
from simulator.request import SimulatedRequest

if TYPE_CHECKING:
    from simulator.gateway import Journey


class Attempt:
    """Passes on what its workers say, until it is over. Calls between gateway and cores take their time."""

    def __init__(self, journey: "Journey", decode: DecodeCore, prefill: PrefillCore | None) -> None:
        """Without `prefill` the other one does both."""
        self._journey, self._decode, self._prefill = journey, decode, prefill
        self._over = False
        self._admitted = False
        self._at_work = False
        self._grant_id = ""
        self._request = self._new_request()
        self._prompt: SimulatedRequest | None = None

    def _new_request(self) -> SimulatedRequest:
        journey = self._journey
        request = SimulatedRequest(
            key=(journey.name, journey.epoch),
            num_prompt_tokens=journey.record.input_tokens,
            num_delivered=journey.record.num_delivered,
            max_tokens=journey.record.output_tokens,
            keys=journey.keys,
            now_ns=journey.loop.now_ns(),
        )
        request.owner = self
        return request

    def start(self, at_s: float) -> None:
        """Calls the decode worker at that moment."""
        loop, decode, call_s = self._journey.loop, self._decode, self._journey.messages.call_s
        if self._prefill is None:
            loop.at(at_s + call_s, decode.tell, decode.add, self._request)
            self._at_work = True
        else:
            loop.at(at_s + call_s, decode.tell, decode.reserve, self._request, self._granted, self._refused)

    def _granted(self, entry: OpenGrant) -> None:
        self._grant_id = entry.grant.grant_id
        if self._over:  # while the answer was on its way
            self._decode.release(self._grant_id, True)
            return
        self._journey.loop.after(2 * self._journey.messages.call_s, self._start_prefill, entry)

    def _refused(self, error: BatonError) -> None:
        self._journey.loop.after(self._journey.messages.call_s, self._take_refusal, error)

    def _take_refusal(self, error: BatonError) -> None:
        if not self._over:
            self._over = True
            self._journey.refused(self._decode.ref, error)

    def _start_prefill(self, entry: OpenGrant) -> None:
        if self._over or self._prefill is None:
            return
        self._prompt = self._new_request()
        self._at_work = True
        prefill = self._prefill
        prefill.tell(prefill.add, self._prompt, entry, self._decode.link_in, self._deliver)

    def _deliver(self) -> None:
        self._admitted = True
        self._journey.loop.after(self._journey.messages.ready_s, self._decode.tell, self._decode.ready, self._grant_id)

    def prompt_computed(self, ended: bool) -> None:
        """As `PromptOwner`."""
        if self._over or self._prompt is None:
            return
        record = self._journey.record
        if record.cached_tokens is None:
            record.cached_tokens = self._prompt.num_cached_tokens
        record.drawn_at(self._journey.loop.now_s)
        if ended:
            self._decode.tell(self._decode.release, self._grant_id, True)
            self._end()

    def drawn(self, log: "array.array[float]", start: int, end: int) -> None:
        """As `TokenOwner`."""
        if not self._over:
            self._journey.record.drawn(log, start, end)

    def finished(self, reason: FinishReason) -> None:
        """As `TokenOwner`."""
        if not self._over:
            if self._journey.record.cached_tokens is None:
                self._journey.record.cached_tokens = self._request.num_cached_tokens
            self._end()

    def _end(self) -> None:
        self._over = True
        self._journey.finished()

    def lost(self, core: object) -> bool:
        """A worker has died. False when the request goes on without it."""
        if self._over or (core is self._prefill and self._admitted):
            return False
        self._over = True
        if core is self._prefill:
            self._decode.tell(self._decode.release, self._grant_id, False)
        elif self._prefill is not None and self._prompt is not None:
            self._prefill.tell(self._prefill.abort, self._prompt.key)
        return True

    def forget(self) -> None:
        """Everything is over: workers' requests do not hold on to the journey any more."""
        self._over = True
        for request in (self._request, self._prompt):
            if request is not None:
                request.owner = _NOBODY

    @property
    def at_work(self) -> bool:
        """Whether a worker computes for it."""
        return self._at_work


class _Nobody:
    """Hears of tokens that nobody waits for."""

    def drawn(self, log: "array.array[float]", start: int, end: int) -> None:
        """Nothing."""

    def finished(self, reason: FinishReason) -> None:
        """Nothing."""

    def prompt_computed(self, ended: bool) -> None:
        """Nothing."""


_NOBODY = _Nobody()
