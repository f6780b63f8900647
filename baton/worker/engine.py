"""What the shell of a worker needs of its engine, whatever that is made of."""

from collections.abc import Callable, Collection
from typing import Protocol

from baton.types import EngineStats, KvLayout


class EngineFacts(Protocol):
    """What a started engine says of itself."""

    @property
    def layout(self) -> KvLayout:
        """Of its KV pool."""

    @property
    def num_blocks(self) -> int:
        """Of its KV pool."""

    @property
    def max_model_len(self) -> int:
        """Prompt and output together, in tokens."""


class StatsAnswer(Protocol):
    """A snapshot."""

    @property
    def stats(self) -> EngineStats:
        """The numbers."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What an integrity check found, where one was asked for."""


class Engine(Protocol):
    """A started engine."""

    on_cache_change: Callable[[tuple[bytes, ...], tuple[bytes, ...]], None] | None  # hashes gained, hashes lost

    @property
    def ready(self) -> EngineFacts:
        """Known from the start on."""

    async def stats(self, check: bool = False) -> StatsAnswer:
        """Raises BatonError UNAVAILABLE when the engine is dead."""

    async def reset_prefix_cache(self) -> int:
        """Drops cached blocks that nobody uses, and says how many. Raises BatonError UNAVAILABLE when it is dead."""

    @property
    def num_open(self) -> int:
        """Attempts that have not ended: running, waiting, or with a KV write under way."""

    async def wait_idle(self) -> None:
        """Returns when no attempt is open, or when the engine is dead."""

    def ask_to_move(self, request_ids: Collection[str] = ()) -> int:
        """Asks the callers of these decodes (none named: all) to have them go on elsewhere; how many were asked."""

    def abort_all(self) -> None:
        """Aborts every open attempt; each ends once no KV write of it is under way."""

    @property
    def death(self) -> str | None:
        """How the engine has ended; None while it lives."""

    async def wait_dead(self) -> str:
        """Returns once the engine has ended, with how."""

    async def close(self) -> None:
        """Ends the engine. Idempotent."""
