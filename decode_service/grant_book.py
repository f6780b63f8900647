"""The grants that wait for their Decode call, with what the engine core has said about each meanwhile."""

import asyncio
import dataclasses

from baton.errors import BatonError, ErrorCode
from baton.types import Grant
from engine.event_stream import EventStream

# A Decode call that comes late still gets the outcome: tokens of a short answer, or why the grant ended.
OUTCOME_KEPT_S = 30.0


@dataclasses.dataclass(slots=True)
class GrantEntry:
    """One grant and the events behind it."""

    grant: Grant
    stream: EventStream
    cached_tokens: int
    claimed: bool = False


class GrantBook:
    """Forgets a grant when it is dropped, and an unclaimed one OUTCOME_KEPT_S after the core has ended it."""

    def __init__(self) -> None:
        self._entries: dict[str, GrantEntry] = {}

    def add(self, entry: GrantEntry) -> None:
        """A new grant."""
        self._entries[entry.grant.grant_id] = entry
        entry.stream.when_over(lambda: self._over(entry))

    def claim(self, grant_id: str, request_id: str, epoch: int) -> GrantEntry:
        """For a Decode call, which gets the stream for itself.

        Raises:
            BatonError: NOT_FOUND for an unknown grant or another attempt's, FAILED_PRECONDITION for a second claim.
        """
        entry = self._entries.get(grant_id)
        if entry is None or (entry.grant.request_id, entry.grant.epoch) != (request_id, epoch):
            raise BatonError(
                ErrorCode.NOT_FOUND,
                f"got grant {grant_id!r} for request {request_id} (epoch {epoch}), expected one that this worker gave "
                "that attempt; it was released, its lease ran out, or the worker was restarted: reserve again",
            )
        if entry.claimed:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"grant {grant_id} of request {request_id} has a Decode call already; a new attempt needs a new grant",
            )
        entry.claimed = True
        return entry

    def epoch_of(self, grant_id: str) -> int | None:
        """None when it is not here (any more)."""
        entry = self._entries.get(grant_id)
        return entry.grant.epoch if entry else None

    def drop(self, grant_id: str) -> None:
        """Forgets a grant, known or not."""
        self._entries.pop(grant_id, None)

    def __len__(self) -> int:
        return len(self._entries)

    def _over(self, entry: GrantEntry) -> None:
        grant_id = entry.grant.grant_id
        if entry.claimed:
            self.drop(grant_id)
        else:
            asyncio.get_running_loop().call_later(OUTCOME_KEPT_S, self.drop, grant_id)
