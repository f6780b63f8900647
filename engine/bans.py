"""Which tokens may not come next: ends of the answer before min_tokens, and last tokens of bad words."""

from collections.abc import Iterable, Sequence

from engine.request import Request


def banned_tokens(request: Request) -> Sequence[int]:
    """Token ids that the request must not draw at its next output position; some may come twice."""
    sampling = request.sampling
    ends = sampling.stop_token_ids if request.next_output_position < sampling.min_tokens else ()
    if not sampling.bad_words:
        return ends
    last = _completing(sampling.bad_words, request.tokens, request.num_prompt_tokens)
    if sampling.allowed_token_ids and {*ends, *last}.issuperset(sampling.allowed_token_ids):
        # Only words of several tokens can come to this (`problem_with_choice`): there is no other way on.
        return ends
    return [*ends, *last]


def _completing(words: Iterable[tuple[int, ...]], tokens: Sequence[int], start: int) -> list[int]:
    """The last token of each word whose others are what `tokens[start:]` ends with."""
    num_output = len(tokens) - start
    last = []
    for word in words:
        before = len(word) - 1
        if before <= num_output and list(word[:-1]) == list(tokens[len(tokens) - before :]):
            last.append(word[-1])
    return last
