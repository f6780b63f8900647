"""One attempt to serve a request on the workers that the router chose: what goes in, what comes out."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from baton.rpc import inference_pb2, sampling_pb2
from baton.types import FinishReason
from gateway.config import Limits
from gateway.request_trace import TraceScope
from gateway.worker import Worker

if TYPE_CHECKING:
    from gateway.output_order import OutputOrder


@dataclass(frozen=True, slots=True)
class Job:
    """What the workers need to know of a request, for one attempt."""

    request_id: str  # unique among all requests that workers may still know
    prompt_token_ids: Sequence[int]
    sampling: sampling_pb2.SamplingParams
    priority: int  # lower is earlier
    deadline: float | None  # the client's, on the event loop's clock
    trace: TraceScope
    limits: Limits
    epoch: int = 1  # names the attempt to the workers
    output_token_ids: Sequence[int] = ()  # delivered by earlier attempts
    answer_index: int = 0  # which of the request's answers this is

    def remaining_s(self) -> float | None:
        """Until the client's deadline; None when it has none."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


class Tokens(NamedTuple):
    """Consecutive output tokens, in order and without gaps from one `Tokens` to the next."""

    position: int  # of the first one
    token_ids: Sequence[int]
    logprobs: Sequence[sampling_pb2.TokenLogprobs]  # empty, or one for each token


class PromptLogprobs(NamedTuple):
    """Log-probabilities of consecutive prompt positions, before the first `Tokens`."""

    position: int  # of the first one
    logprobs: Sequence[sampling_pb2.TokenLogprobs]


class Finished(NamedTuple):
    """The request has ended well."""

    reason: FinishReason
    cached_prompt_tokens: int
    hand_over: inference_pb2.HandOver


class Moved(NamedTuple):
    """The request goes on on another worker; what is known of it so far."""

    cached_prompt_tokens: int
    hand_over: inference_pb2.HandOver


Emit = Callable[[Tokens | PromptLogprobs], None]


class Attempt(ABC):
    """`run` once; `close` once `run` has ended, however it ended, or after `stop`."""

    def __init__(self, job: Job, decoder: Worker, order: "OutputOrder") -> None:
        self.job = job
        self.decoder = decoder  # the worker that decodes
        self.order = order  # which every token of it goes through
        self.move_wanted = asyncio.Event()  # the decoder wants to be rid of the request

    @abstractmethod
    async def known(self) -> None:
        """Returns when the worker that decodes knows of the attempt, or will not; one with a grant does at once."""

    @abstractmethod
    async def run(self) -> Finished | Moved:
        """Serves the request, handing its tokens to `order`. `Moved` only after the decoder was told to migrate it.

        Raises:
            BatonError: The attempt failed.
        """

    @abstractmethod
    async def stop(self) -> Finished:
        """The tokens so far are enough (a stop string was found): ends decoding and sums up."""

    @abstractmethod
    async def close(self) -> None:
        """Frees whatever the workers still hold for the attempt. Runs in the background; failures are logged."""
