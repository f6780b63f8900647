"""A bounded queue that is shared between clients by weight, and by priority within each client.

Start-time fair queueing: Goyal, Vin and Cheng (1996). A client gets its share of the tokens, not of the requests.
"""

import bisect
from collections.abc import Iterator

from gateway.admission.base import Client, Entry


class _Flow:
    """One client's requests."""

    def __init__(self, client: Client, start: float) -> None:
        self.client = client
        self.start = start  # virtual time at which its next request begins
        self.entries: list[Entry] = []  # the next one first
        self.slots = 0


def _order(entry: Entry) -> tuple[int, int]:
    return entry.priority, entry.sequence


class FairQueue:
    """All operations take time in the number of clients that wait, at most."""

    def __init__(self, max_clients: int) -> None:
        """`max_clients`: whose past is remembered while the queue is not empty."""
        self._max_clients = max_clients
        self._now = 0.0  # virtual
        self._flows: dict[str, _Flow] = {}
        self._waiting: dict[str, _Flow] = {}  # those with entries
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        for flow in self._waiting.values():
            yield from flow.entries

    def length(self, client: Client) -> int:
        """Of one client's part."""
        flow = self._waiting.get(client.name)
        return len(flow.entries) if flow else 0

    def put(self, entry: Entry) -> None:
        """Behind the client's requests of the same or an earlier priority."""
        name = entry.client.name
        flow = self._flows.get(name)
        if flow is None:
            self._make_room()
            flow = self._flows[name] = _Flow(entry.client, self._now)
        if not flow.entries:
            flow.start = max(flow.start, self._now)
            self._waiting[name] = flow
        flow.client = entry.client
        bisect.insort(flow.entries, entry, key=_order)
        flow.slots += entry.slots
        self._size += 1

    def first(self) -> Entry | None:
        """Whoever is next."""
        flow = self._next_flow()
        return flow.entries[0] if flow else None

    def pop(self, cost: float) -> Entry:
        """Takes the next one out; `cost` in tokens is charged to its client."""
        flow = self._next_flow()
        assert flow is not None
        entry = flow.entries[0]
        self._now = flow.start
        flow.start += cost / flow.client.weight
        self._take(flow, 0)
        return entry

    def remove(self, entry: Entry) -> None:
        """Takes one out that will not start; nothing is charged."""
        flow = self._waiting[entry.client.name]
        self._take(flow, bisect.bisect_left(flow.entries, _order(entry), key=_order))

    def slots_ahead(self, client: Client, priority: int, slots: int) -> float:
        """Those that start before a new request of `slots`, if nobody else comes."""
        own = 0
        flow = self._waiting.get(client.name)
        if flow is not None:
            behind = bisect.bisect_right(flow.entries, priority, key=lambda entry: entry.priority)
            own = sum(entry.slots for entry in flow.entries[:behind])
        share = (own + slots) / client.weight
        others = (flow for name, flow in self._waiting.items() if name != client.name)
        return own + sum(min(flow.slots, share * flow.client.weight) for flow in others)

    def _next_flow(self) -> _Flow | None:
        return min(self._waiting.values(), key=lambda flow: flow.start, default=None)

    def _take(self, flow: _Flow, index: int) -> None:
        flow.slots -= flow.entries.pop(index).slots
        self._size -= 1
        if not flow.entries:
            del self._waiting[flow.client.name]
        if not self._waiting:  # nobody competes any more
            self._flows.clear()
            self._now = 0.0

    def _make_room(self) -> None:
        """Forgets clients that do not wait, those known longest first."""
        excess = len(self._flows) + 1 - self._max_clients
        if excess > 0:
            idle = [name for name, flow in self._flows.items() if not flow.entries]
            for name in idle[:excess]:
                del self._flows[name]
