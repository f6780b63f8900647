"""A simulated prefill worker's core: prompts in chunks, and their KV on its way to decode."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from engine.grants import OpenGrant
from engine.request import Key
from engine.scheduler.base import Advanced
from engine.scheduler.policy import make_policy
from engine.scheduler.prefill import PrefillScheduler
from simulator.core import Core, CoreContext
from simulator.costs import Costs
from simulator.directory import Directory
from simulator.events import EventLoop
from simulator.network import Link, Network
from simulator.request import SimulatedRequest


class PromptOwner(Protocol):
    """Who hears of a prompt."""

    def prompt_computed(self, ended: bool) -> None:
        """The first token is drawn; `ended`: it is the last one, too."""
        ...


class Sending:
    """One request's KV on its way: `engine/handover.py` without tensors."""

    __slots__ = ("deliver", "first_block", "in_flight", "last_posted", "next_block", "request", "target")

    def __init__(self, request: SimulatedRequest, entry: OpenGrant, target: Link, deliver: Callable[[], None]) -> None:
        """`deliver` is called when KvReady is where it goes."""
        self.request, self.target, self.deliver = request, target, deliver
        self.next_block = entry.grant.first_block
        self.in_flight = 0
        self.last_posted = False


class PrefillCore(Core):
    """Each finished chunk is written while the next one computes; KvReady comes behind the last write."""

    def __init__(
        self, loop: EventLoop, context: CoreContext, directory: Directory, costs: Costs, network: Network, seed: int = 0
    ) -> None:
        scheduler_config = context.config.scheduler
        self.scheduler = PrefillScheduler(
            scheduler_config, context.blocks, context.max_model_len, make_policy(scheduler_config, loop.clock)
        )
        super().__init__(loop, context, self.scheduler, directory, (costs.prefill, costs.prefill_turn), False, seed)
        self._network = network
        self._sent_token_s = costs.prefill_turn.sent_token_s
        self._sending: dict[Key, Sending] = {}

    def add(self, request: SimulatedRequest, entry: OpenGrant, target: Link, deliver: Callable[[], None]) -> None:
        """As `Prefill` with a grant."""
        self._sending[request.key] = Sending(request, entry, target, deliver)
        self.scheduler.add(request)

    def committed(self, advanced: Sequence[Advanced]) -> None:
        for item in advanced:
            request = cast(SimulatedRequest, item.request)
            sending = self._sending[request.key]
            if item.token is None:
                self._send_chunk(sending)
                continue
            cast(PromptOwner, request.owner).prompt_computed(item.finish is not None)
            if item.finish is None:
                self._send_last(sending)
            else:
                sending.last_posted = True
                self._end_if_written(sending)

    def _send_chunk(self, sending: Sending) -> None:
        block_size, request = self.context.blocks.block_size, sending.request
        last = (request.num_given_tokens - 1) // block_size
        ready = min(request.num_computed_tokens // block_size, last)
        if ready > sending.next_block:
            self._post(sending, ready)

    def _send_last(self, sending: Sending) -> None:
        if not sending.in_flight:
            sending.last_posted = True
            self._post(sending, self.context.blocks.blocks_for(sending.request.num_given_tokens))

    def _post(self, sending: Sending, end_block: int) -> None:
        num_blocks = end_block - sending.next_block
        self._extra_s += self._sent_token_s * num_blocks * self.context.blocks.block_size
        sending.next_block = end_block
        sending.in_flight += 1
        deliver = sending.deliver if sending.last_posted else None

        def done() -> None:
            if self.dead:
                return
            if deliver:
                deliver()
            self.tell(self._write_ended, sending)

        self._network.write(self.link_out, sending.target, num_blocks * self.context.block_bytes, done)

    def _write_ended(self, sending: Sending) -> None:
        sending.in_flight -= 1
        if sending.last_posted:
            self._end_if_written(sending)
        elif len(sending.request.tokens) > sending.request.num_given_tokens:  # its first token is drawn
            self._send_last(sending)

    def _end_if_written(self, sending: Sending) -> None:
        if not sending.in_flight:
            del self._sending[sending.request.key]
            self.context.blocks.release(sending.request)

    def abort(self, key: Key) -> None:
        """Nobody wants it any more; writes under way end."""
        sending = self._sending.get(key)
        if sending is not None:
            self.scheduler.remove(key)
            sending.last_posted = True
            self._end_if_written(sending)

    def check_integrity(self) -> list[str]:
        held = [sending.request.block_ids for sending in self._sending.values()]
        return self.context.pool.check_integrity(held)
