"""Which answers a client gets, and when: all of them as they are made, or the best ones in the end."""

from abc import ABC, abstractmethod

from baton.rpc import inference_pb2

Responses = list[inference_pb2.GenerateResponse]


class Selection(ABC):
    """Takes the responses of all answers, in the order of each, and gives out what the client is to see."""

    @abstractmethod
    def add(self, index: int, response: inference_pb2.GenerateResponse) -> Responses:
        """One more response of answer `index`; its last one has a finish_reason. Those to be sent now."""


class AllInTurns(Selection):
    """Every answer under its own index."""

    def add(self, index: int, response: inference_pb2.GenerateResponse) -> Responses:
        response.index = index
        return [response]


class BestOf(Selection):
    """The answers with the largest sums of log-probabilities, best first, when all have ended; vLLM's V0 ranks so, too.

    A sum is not divided by the length, so of answers as likely by the token the shorter one is the better.
    """

    def __init__(self, n: int, best_of: int, with_logprobs: bool) -> None:
        """The responses have log-probabilities; without `with_logprobs` they are taken out."""
        self._n = n
        self._with_logprobs = with_logprobs
        self._kept: list[Responses] = [[] for _ in range(best_of)]
        self._logprobs = [0.0] * best_of
        self._num_open = best_of

    def add(self, index: int, response: inference_pb2.GenerateResponse) -> Responses:
        self._logprobs[index] += sum(entry.sampled.logprob for entry in response.logprobs)
        if not self._with_logprobs:
            response.ClearField("logprobs")
        self._kept[index].append(response)
        self._num_open -= bool(response.finish_reason)
        return [] if self._num_open else self._best()

    def _best(self) -> Responses:
        ranked = sorted(range(len(self._kept)), key=lambda index: -self._logprobs[index])
        chosen = []
        for rank, index in enumerate(ranked[: self._n]):
            for response in self._kept[index]:
                response.index = rank
                chosen.append(response)
        return chosen
