"""How workers compare for one prompt, one by one and as pairs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from baton.types import WorkerRef
from gateway.worker import Worker


class Pairing(NamedTuple):
    """Workers that can exchange KV, each side best first; none on either side, or at least one on both."""

    prefill: list[Worker]
    decode: list[Worker]


class Ranking:
    """Last resorts last, then those that are out of reach, then most of the prefix owned, then least load."""

    def __init__(self, owned_blocks: Mapping[WorkerRef, int], last_resort: Collection[WorkerRef]) -> None:
        self._owned_blocks = owned_blocks
        self._last_resort = last_resort

    def trouble(self, *workers: Worker) -> tuple[bool, ...]:
        """Whether one of them is a last resort, and whether one is out of reach. More is worse."""
        return any(worker.ref in self._last_resort for worker in workers), any(worker.avoided for worker in workers)

    def rank(self, workers: Iterable[Worker]) -> list[Worker]:
        """Best first."""
        return sorted(workers, key=lambda worker: (*self.trouble(worker), *self._merit(worker)))

    def best_pairing(self, prefill: Sequence[Worker], decode: Sequence[Worker]) -> Pairing:
        """The workers of one KV format: that with the best pair."""
        pairings = [
            Pairing(self._rank_of(prefill, kv_format), self._rank_of(decode, kv_format))
            for kv_format in sorted(kv_formats(prefill) & kv_formats(decode))
        ]
        return min(pairings, key=self._order, default=Pairing([], []))

    def _rank_of(self, workers: Iterable[Worker], kv_format: tuple[int, str]) -> list[Worker]:
        return self.rank(worker for worker in workers if worker.record.kv_format == kv_format)

    def _order(self, pairing: Pairing) -> tuple[float, ...]:
        prefill, decode = pairing.prefill[0], pairing.decode[0]
        return *self.trouble(prefill, decode), *self._merit(prefill), *self._merit(decode)

    def _merit(self, worker: Worker) -> tuple[int, int]:
        """Less is better. Owned tokens, since blocks differ in size."""
        return -self._owned_blocks.get(worker.ref, 0) * worker.record.block_size, worker.in_flight


def kv_formats(workers: Iterable[Worker]) -> set[tuple[int, str]]:
    """The KV formats that there are among them."""
    return {worker.record.kv_format for worker in workers}
