"""What every part of one engine core shares: configuration, model, blocks, and the way out for events."""

import time
from collections.abc import Callable
from typing import NamedTuple

from baton.block_hash import root_hash
from baton.errors import invalid
from baton.model_folder import servable_folder
from baton.model_spec import ModelSpec, load_model_spec
from baton.types import EngineStats
from engine.block_pool import BlockPool
from engine.config import EngineConfig, check_config
from engine.counts import EngineCounts
from engine.grammar.compiler import CompilerLimits, GrammarCompiler
from engine.grammar.registry import make_backend
from engine.grammar.state import GrammarState
from engine.messages import AddLocal, AddPrefill, CacheChanged, Event, Reserve
from engine.request import Request
from engine.request_rules import (
    problem_with_output,
    problem_with_priority,
    problem_with_prompt,
    problem_with_sampling,
)
from engine.runner import ModelRunner
from engine.scheduler.base import Scheduler
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.costs import PreemptionCosts
from engine.scheduler.preemption import Preemption
from engine.step_log import StepLog


class GrammarRequest(NamedTuple):
    """What a request that waited for its grammar brings along."""

    grammar: GrammarState
    arrived_unix_ns: int


class EngineContext:
    """Made once per core, passed to the role."""

    def __init__(self, config: EngineConfig, send: Callable[[list[Event]], None]) -> None:
        """Loads the model and allocates the pool.

        Raises:
            BatonError: when the model cannot be served as configured; the message says what to change.
        """
        check_config(config)
        self.config = config
        self.spec: ModelSpec = load_model_spec(
            servable_folder(config.model_path, config.load_format), config.model_name, config.load_format
        )
        self.max_model_len = _max_model_len(config.max_model_len, self.spec)
        self.runner = ModelRunner(config, self.spec, self.max_model_len)
        self.pool = BlockPool(self.runner.num_blocks, config.cache.enable_prefix_caching)
        self.blocks = RequestBlocks(self.pool, config.cache.block_size)
        self.costs = PreemptionCosts(self.runner.layout.block_bytes)
        self.counts = EngineCounts()
        self.step_log = StepLog(config.step_log) if config.step_log else None
        self.grammars = GrammarCompiler(lambda: make_backend(self.spec), CompilerLimits())
        self.with_grammar: GrammarRequest | None = None  # for the next `new_request`
        self._root_hash = root_hash(self.spec.fingerprint)
        self._send = send
        self._outbox: list[Event] = []

    @property
    def overlaps_steps(self) -> bool:
        """Whether a step is planned and launched while the device runs the one before; a CPU has nothing to overlap."""
        wanted = self.config.scheduler.overlap_steps
        return self.runner.on_gpu if wanted is None else wanted

    def close(self) -> None:
        """Ends the record of steps. Idempotent."""
        if self.step_log:
            self.step_log.close()

    def emit(self, event: Event) -> None:
        """Queues an event for the next `flush`."""
        self._outbox.append(event)

    def flush(self) -> None:
        """Sends what is queued, and what has changed in the prefix cache, as one batch."""
        stored, removed = self.pool.take_changes()
        if stored or removed:
            self._outbox.append(CacheChanged(stored, removed))
        if self._outbox:
            self._send(self._outbox)
            self._outbox = []

    def new_request(self, command: AddLocal | AddPrefill | Reserve) -> Request:
        """A request that holds no blocks yet. One with a grammar has passed the `GrammarGate`."""
        waited, num_prompt_tokens = self.with_grammar, len(command.prompt)
        assert (waited is None) == (command.sampling.structured is None)
        return Request(
            key=(command.request_id, command.epoch),
            num_prompt_tokens=num_prompt_tokens,
            sampling=command.sampling,
            tokens=[*command.prompt, *command.output],
            # All that is to be told of a prompt goes out before the first token.
            num_told_positions=num_prompt_tokens if command.output else 1,
            queued_unix_ns=waited.arrived_unix_ns if waited else time.time_ns(),
            last_hash=self._root_hash,
            grammar=waited.grammar if waited else None,
            priority=command.priority,
        )

    def problem_with(self, command: AddLocal | AddPrefill | Reserve) -> str | None:
        """Why a request cannot be computed; what would break a step for everyone is caught here."""
        vocab_size, sampling = self.spec.vocab_size, command.sampling
        return (
            problem_with_prompt(command.prompt, vocab_size, self.max_model_len)
            or problem_with_sampling(sampling, vocab_size)
            or problem_with_output(command.prompt, command.output, sampling, vocab_size, self.max_model_len)
            or problem_with_priority(command.priority)
        )

    def stats(
        self, scheduler: Scheduler, preemption: Preemption | None = None, grants: int = 0, mismatches: int = 0
    ) -> EngineStats:
        """A snapshot for the service."""
        return EngineStats(
            blocks=self.pool.stats(),
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            grants=grants,
            steps=self.counts.num_steps,
            prefix_query_tokens=self.blocks.num_query_tokens,
            prefix_hit_tokens=self.blocks.num_hit_tokens,
            preemptions=preemption.num_preemptions if preemption else 0,
            digest_mismatches=mismatches,
            swap_preemptions=preemption.num_swaps if preemption else 0,
            swap_blocks_used=preemption.space.num_used if preemption else 0,
            fences=self.pool.fences(),
            writes=self.counts.writes(),
            step_seconds=self.counts.step_seconds.snapshot(),
            step_tokens=self.counts.step_tokens.snapshot(),
            step_sequences=self.counts.step_sequences.snapshot(),
        )


def _max_model_len(configured: int | None, spec: ModelSpec) -> int:
    """A model answers nonsense at positions that it was not trained for."""
    limit = spec.max_position_embeddings
    if configured is not None and configured > limit:
        raise invalid(
            f"--max-model-len: got {configured}, expected at most {limit}, the longest that model {spec.name} was made "
            "for; lower it, or leave it out"
        )
    return configured or limit
