"""One answer's responses: tokens become text, and the end carries reason, usage and hand-over."""

from baton.convert import finish_to_pb
from baton.rpc import inference_pb2, sampling_pb2
from baton.types import FinishReason
from gateway.attempt import Finished, Tokens
from gateway.no_text import TokensOnlyCodec
from gateway.output_text import OutputText
from gateway.request_trace import RequestTrace
from gateway.stop_strings import StopStrings
from gateway.text import TextCodec
from gateway.validate import ValidatedRequest


class Answer:
    """Turns a run's events into responses for the client, and what its text took into a span."""

    def __init__(
        self, request: ValidatedRequest, codec: TextCodec | TokensOnlyCodec, trace: RequestTrace, index: int
    ) -> None:
        self._request = request
        self._trace = trace
        self._index = index
        self.num_tokens = 0
        self.reason = FinishReason.LENGTH  # known at the end
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

    def tokens(self, tokens: Tokens) -> inference_pb2.GenerateResponse:
        """The response that carries these tokens, up to the one that completes a stop string."""
        if self._request.prompt_only:
            return inference_pb2.GenerateResponse()
        pieces = []
        for token_id in tokens.token_ids:
            pieces.append(self._text.push(token_id))
            if self.stopped:
                break
        self.num_tokens += len(pieces)
        return inference_pb2.GenerateResponse(
            text="".join(pieces),
            token_ids=tokens.token_ids[: len(pieces)],
            logprobs=tokens.logprobs[: len(pieces)],
        )

    def end(self, finished: Finished) -> inference_pb2.GenerateResponse:
        """The last response."""
        text = self._text.finish()
        self.reason = FinishReason.STOP if self.stopped else finished.reason
        if self._request.prompt_only:
            self.reason = FinishReason.LENGTH  # whatever the token is that nobody sees
        self._record()
        return inference_pb2.GenerateResponse(
            text=text,
            finish_reason=finish_to_pb(self.reason),
            usage=sampling_pb2.Usage(
                prompt_tokens=len(self._request.prompt_token_ids),
                completion_tokens=self.num_tokens,
                cached_prompt_tokens=finished.cached_prompt_tokens,
            ),
            hand_over=finished.hand_over,
        )

    def _record(self) -> None:
        self._trace.record(
            "gateway.detokenize",
            self._text.first_unix_ns,
            self._text.last_unix_ns,
            {
                "baton.answer.index": self._index,
                "baton.detokenize.seconds": self._text.seconds,
                "baton.detokenize.tokens": self.num_tokens,
            },
        )
