"""All answers to one request: from the events of their runs to the responses that its client gets."""

from baton.types import FinishReason
from gateway.answer import Answer
from gateway.attempt import Finished, PromptLogprobs, Tokens
from gateway.no_text import TokensOnlyCodec
from gateway.preface import Preface
from gateway.request_trace import RequestTrace
from gateway.selection import AllInTurns, BestOf, Responses, Selection
from gateway.text import TextCodec
from gateway.validate import ValidatedRequest


class Answers:
    """`take` every event of the request's `RunGroup`."""

    def __init__(self, request: ValidatedRequest, codec: TextCodec | TokensOnlyCodec, trace: RequestTrace) -> None:
        n, best_of = request.num_answers
        self._answers = [Answer(request, codec, trace, index) for index in range(best_of)]
        self._selection: Selection = AllInTurns()
        if best_of > n:
            self._selection = BestOf(n, best_of, with_logprobs=request.sampling.num_logprobs is not None)
        self._preface = Preface(request, trace)
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._trace = trace
        self._reasons: dict[int, FinishReason] = {}

    @property
    def complete(self) -> bool:
        """Whether all have ended."""
        return len(self._reasons) == len(self._answers)

    @property
    def num_tokens(self) -> int:
        """Of all of them so far."""
        return sum(answer.num_tokens for answer in self._answers)

    def stopped(self, index: int) -> bool:
        """Whether a stop string was found in an answer: it ends with the tokens so far."""
        return self._answers[index].stopped

    def take(self, index: int, event: Tokens | PromptLogprobs | Finished) -> Responses:
        """What the client is to be told now."""
        if isinstance(event, PromptLogprobs):
            responses = [self._preface.prompt_logprobs(event)]
        elif isinstance(event, Tokens):
            responses = self._selection.add(index, self._answers[index].tokens(event))
        else:
            responses = self._selection.add(index, self._answers[index].end(event))
            self._reasons[index] = self._answers[index].reason
            if self.complete:
                self._record()
        return [self._preface.complete(response) for response in responses]

    def _record(self) -> None:
        self._trace.set(
            {
                "gen_ai.usage.input_tokens": self._num_prompt_tokens,
                "gen_ai.usage.output_tokens": self.num_tokens,
                "gen_ai.response.finish_reasons": tuple(self._reasons[index].value for index in sorted(self._reasons)),
            }
        )
