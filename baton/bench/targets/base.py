"""What an endpoint must offer to be measured."""

import abc
import time
from typing import Self

import msgspec

now_s = time.perf_counter  # CLOCK_MONOTONIC on Linux: one clock for all processes of a machine


class Ask(msgspec.Struct, frozen=True):
    """One request."""

    request_id: str
    prompt: list[int]
    output_tokens: int


class Served(msgspec.Struct, frozen=True):
    """What an endpoint says about its model."""

    model: str
    max_model_len: int | None = None  # in tokens, where it says so


class Failure(Exception):
    """A request that did not end well. `kind` groups failures; the message is what the server or the network said."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Arrivals:
    """What has come of one answer so far."""

    __slots__ = ("cached_tokens", "moments_s", "num_tokens", "output_tokens", "token_ids")

    def __init__(self) -> None:
        self.moments_s: list[float] = []  # of each message that brought tokens, by `now_s`
        self.num_tokens = 0  # as counted
        self.output_tokens: int | None = None  # as the server says at the end
        self.cached_tokens: int | None = None
        self.token_ids: list[int] = []  # empty where the endpoint sends text alone


class Target(abc.ABC):
    """Use as an asynchronous context manager, in one event loop."""

    @abc.abstractmethod
    async def __aenter__(self) -> Self:
        """Opens the connection lazily: an endpoint that is not there shows with the first call."""

    @abc.abstractmethod
    async def __aexit__(self, *details: object) -> None:
        """Closes it; what still streams ends."""

    @abc.abstractmethod
    async def served(self, model: str) -> Served:
        """What is served under `model`, or the first model there is when that is empty.

        Raises:
            BatonError: UNAVAILABLE when nothing answers at the address; NOT_FOUND when the model is not served.
        """

    @abc.abstractmethod
    def prepare(self, ask: Ask, model: str) -> bytes:
        """The request as it goes out, made before its time so that the sending itself is cheap."""

    @abc.abstractmethod
    async def stream(self, request_id: str, payload: bytes, arrivals: Arrivals, timeout_s: float) -> None:
        """Sends what `prepare` made and notes what comes, until the answer is complete.

        Raises:
            Failure: for an answer that is refused, breaks off or has no token; what came until then is in `arrivals`.
        """
