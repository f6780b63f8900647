"""Workers that give log-probabilities with every token, as real ones do where they are asked for."""

from collections.abc import AsyncIterator

from baton.rpc import sampling_pb2, worker_pb2
from baton.types import FinishReason
from tests.fakes.gateway_stack import Stack
from tests.fakes.workers import admitted, finished, first_token, prefill_done, prompt_logprobs


def score(stack: Stack, answer: list[int]) -> None:
    """They answer `answer`; the gateway shows log-probabilities where a client has asked for them."""
    scored = [
        sampling_pb2.TokenLogprobs(sampled=sampling_pb2.Logprob(token_id=token, logprob=-1.0)) for token in answer
    ]

    async def prefill(request: worker_pb2.PrefillRequest) -> AsyncIterator[worker_pb2.PrefillEvent]:
        if request.sampling.HasField("prompt_logprobs"):
            yield worker_pb2.PrefillEvent(prompt_logprobs=prompt_logprobs(1, *request.prompt_token_ids[1:]))
        ends = request.sampling.max_tokens == 1
        first = first_token(answer[0], FinishReason.LENGTH if ends else None)
        first.first_token.logprobs.CopyFrom(scored[0])
        yield first
        yield prefill_done(worker_pb2.TransferStats())

    async def decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
        yield admitted()
        later = worker_pb2.DecodeTokens(output_position=1, token_ids=answer[1:], logprobs=scored[1:])
        yield worker_pb2.DecodeEvent(tokens=later)
        yield finished()

    stack.prefill.script, stack.decode.script = prefill, decode
