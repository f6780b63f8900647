"""What a workload is: numbered sessions, each of one or more turns, all made from the seed alone."""

import abc
from collections.abc import Sequence

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """One request of a session: what it adds to the conversation, and how much is to be answered."""

    new_tokens: list[int]
    output_tokens: int


class Session(msgspec.Struct, frozen=True):
    """Requests that follow one another: a turn is sent `think_s` after the answer to the turn before.

    A turn's prompt is everything said so far, answers included, and its own tokens.
    """

    turns: Sequence[Turn]
    think_s: float = 0.0


class Workload(abc.ABC):
    """Any process can make any session, in any order: the same number gives the same session."""

    @property
    @abc.abstractmethod
    def num_sessions(self) -> int | None:
        """None: as many as are asked for."""

    @abc.abstractmethod
    def session(self, number: int) -> Session:
        """The session of that number, from 0."""

    def session_arrival_s(self, number: int) -> float:
        """When it is to be sent, in seconds since the start; only workloads that are records of a load know.

        Raises:
            NotImplementedError: for all others; `check_load` lets nobody ask.
        """
        raise NotImplementedError(f"{type(self).__name__} has no arrival times of its own")

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the results should know, such as requests left out."""
        return ()
