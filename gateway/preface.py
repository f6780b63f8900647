"""What is said once of a request: its id, its trace, and its prompt, in front of the answer of index 0."""

from baton.rpc import inference_pb2
from gateway.attempt import PromptLogprobs
from gateway.request_trace import RequestTrace
from gateway.validate import ValidatedRequest


class Preface:
    """Completes responses in the order in which they leave."""

    def __init__(self, request: ValidatedRequest, trace: RequestTrace) -> None:
        self._request = request
        self._trace_id = trace.trace_id  # until it is told
        self._prompt_told = False
        self._num_told_positions = 1  # of the prompt

    def prompt_logprobs(self, told: PromptLogprobs) -> inference_pb2.GenerateResponse:
        """The response that carries them, but for positions that have come before."""
        known = max(0, self._num_told_positions - told.position)
        self._num_told_positions = max(self._num_told_positions, told.position + len(told.logprobs))
        return inference_pb2.GenerateResponse(prompt_logprobs=told.logprobs[known:])

    def complete(self, response: inference_pb2.GenerateResponse) -> inference_pb2.GenerateResponse:
        """The response with its request's id; the first one with the trace's id, that of index 0 with the prompt."""
        response.request_id = self._request.request_id
        response.trace_id, self._trace_id = self._trace_id, ""
        if self._prompt_told or response.index:
            return response
        self._prompt_told = True
        first = inference_pb2.GenerateResponse()
        if self._request.sampling.num_prompt_logprobs is not None:
            first.prompt_logprobs.add()  # nothing precedes the first token
        if self._request.echo is not None:
            first.prompt_token_ids.extend(self._request.prompt_token_ids)
            response.text = self._request.echo + response.text
        first.MergeFrom(response)
        return first
