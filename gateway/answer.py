"""One request's responses: tokens become text, and the end carries reason, usage and hand-over."""

from baton.convert import finish_to_pb
from baton.rpc import inference_pb2, sampling_pb2
from baton.types import FinishReason
from gateway.attempt import Finished, PromptLogprobs, Tokens
from gateway.no_text import TokensOnlyCodec
from gateway.output_text import OutputText
from gateway.request_trace import RequestTrace
from gateway.stop_strings import StopStrings
from gateway.text import TextCodec
from gateway.validate import ValidatedRequest


class Answer:
    """Turns a run's events into responses for the client, and its figures into span attributes."""

    def __init__(self, request: ValidatedRequest, codec: TextCodec | TokensOnlyCodec, trace: RequestTrace) -> None:
        self._request = request
        self._trace = trace
        self._begun = False
        self._num_tokens = 0
        self._num_told_positions = 1  # of the prompt
        self._text = OutputText(
            codec.detokenizer(
                request.prompt_token_ids, request.skip_special_tokens, request.spaces_between_special_tokens
            ),
            StopStrings(request.stop_strings, request.include_stop_str_in_output),
            frozenset() if request.include_stop_str_in_output else frozenset(request.sampling.stop_token_ids),
            request.sampling.min_tokens,
        )

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the answer ends with the tokens so far."""
        return self._text.stopped

    def prompt_logprobs(self, told: PromptLogprobs) -> inference_pb2.GenerateResponse:
        """The response that carries them, but for positions that have come before."""
        known = max(0, self._num_told_positions - told.position)
        self._num_told_positions = max(self._num_told_positions, told.position + len(told.logprobs))
        return self._named(inference_pb2.GenerateResponse(prompt_logprobs=told.logprobs[known:]))

    def tokens(self, tokens: Tokens) -> inference_pb2.GenerateResponse:
        """The response that carries these tokens, up to the one that completes a stop string."""
        if self._request.prompt_only:
            return self._named(inference_pb2.GenerateResponse())
        pieces = []
        for token_id in tokens.token_ids:
            pieces.append(self._text.push(token_id))
            if self.stopped:
                break
        self._num_tokens += len(pieces)
        response = inference_pb2.GenerateResponse(
            text="".join(pieces),
            token_ids=tokens.token_ids[: len(pieces)],
            logprobs=tokens.logprobs[: len(pieces)],
        )
        return self._named(response)

    def _named(self, response: inference_pb2.GenerateResponse) -> inference_pb2.GenerateResponse:
        """The response with its request's id; the first one with the trace's id and, in front, what is to be echoed."""
        response.request_id = self._request.request_id
        if self._begun:
            return response
        self._begun = True
        first = inference_pb2.GenerateResponse(trace_id=self._trace.trace_id)
        if self._request.sampling.num_prompt_logprobs is not None:
            first.prompt_logprobs.add()  # nothing precedes the first token
        if self._request.echo is not None:
            first.prompt_token_ids.extend(self._request.prompt_token_ids)
            response.text = self._request.echo + response.text
        first.MergeFrom(response)
        return first

    def end(self, finished: Finished) -> inference_pb2.GenerateResponse:
        """The last response."""
        text = self._text.finish()
        reason = FinishReason.STOP if self.stopped else finished.reason
        if self._request.prompt_only:
            reason = FinishReason.LENGTH  # whatever the token is that nobody sees
        self._record(reason)
        last = inference_pb2.GenerateResponse(
            text=text,
            finish_reason=finish_to_pb(reason),
            usage=sampling_pb2.Usage(
                prompt_tokens=len(self._request.prompt_token_ids),
                completion_tokens=self._num_tokens,
                cached_prompt_tokens=finished.cached_prompt_tokens,
            ),
            hand_over=finished.hand_over,
        )
        return self._named(last)

    def _record(self, reason: FinishReason) -> None:
        self._trace.set(
            {
                "gen_ai.usage.input_tokens": len(self._request.prompt_token_ids),
                "gen_ai.usage.output_tokens": self._num_tokens,
                "gen_ai.response.finish_reasons": (reason.value,),
            }
        )
        self._trace.record(
            "gateway.detokenize",
            self._text.first_unix_ns,
            self._text.last_unix_ns,
            {"baton.detokenize.seconds": self._text.seconds, "baton.detokenize.tokens": self._num_tokens},
        )
