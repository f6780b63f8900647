"""Followers: requests that wait for the KV of another one's prompt, which is theirs, too."""

from collections.abc import Iterable

from engine.request import Key, Request


class Forks:
    """Who waits for whom. What waits here is ranked, holds no blocks, and is no other queue's."""

    def __init__(self) -> None:
        self.by_leader: dict[Key, list[Request]] = {}  # never an empty list
        self._leader_of: dict[Key, Key] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def wait(self, leader: Key, followers: Iterable[Request]) -> None:
        """Keeps `followers` until `leader`'s KV is there or will not come."""
        for follower in followers:
            self.by_leader.setdefault(leader, []).append(follower)
            self._leader_of[follower.key] = leader

    def take(self, leader: Key) -> list[Request]:
        """All that wait for `leader`, in the order they came; the caller owns them now."""
        followers = self.by_leader.pop(leader, [])
        for follower in followers:
            del self._leader_of[follower.key]
        return followers

    def remove(self, key: Key) -> Request | None:
        """Takes one follower out; None when it does not wait here."""
        leader = self._leader_of.get(key)
        if leader is None:
            return None
        followers = self.take(leader)
        (removed,) = (follower for follower in followers if follower.key == key)
        self.wait(leader, (follower for follower in followers if follower is not removed))
        return removed
