"""A step that the device runs: what it draws, and says of draws and prompts, is there once it has ended."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.types import TokenLogprobs
from engine.drawn_tokens import TokensOnTheWay
from engine.logprobs import LogprobsOnTheWay, PromptPart
from engine.request import Key, Request


class PromptTold(NamedTuple):
    """What a step says of a prompt."""

    first_position: int
    logprobs: Sequence[TokenLogprobs]


class StepResult(NamedTuple):
    """Sampled tokens, and log-probabilities where asked for."""

    tokens: Sequence[int]  # of the plan's sequences that sample, in their order
    logprobs: dict[Key, TokenLogprobs]
    prompt_logprobs: Mapping[Key, PromptTold] = {}


class StepInFlight(NamedTuple):
    """Launched, with all its copies to the host enqueued behind it."""

    requests: list[Request]  # those that draw a token
    drawn: TokensOnTheWay
    logprobs: tuple[list[int], LogprobsOnTheWay] | None  # rows of `requests`, and what is said of their draws
    prompts: list[tuple[PromptPart, list[LogprobsOnTheWay]]]

    def wait(self) -> None:
        """Returns when the device has run the step."""
        self.drawn.wait()

    def result(self) -> StepResult:
        """Waits for this step, and not for one behind it."""
        self.wait()
        requests = self.requests
        logprobs = {}
        if self.logprobs:
            rows, told = self.logprobs
            logprobs = {requests[row].key: one for row, one in zip(rows, told.read(), strict=True)}
        prompts = {
            part.request.key: PromptTold(part.positions.start, [one for told in parts for one in told.read()])
            for part, parts in self.prompts
        }
        return StepResult(self.drawn.token_ids.tolist(), logprobs, prompts)
