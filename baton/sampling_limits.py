"""The sizes of sampling fields that gateway and workers accept, and token rules that would leave nothing to draw."""

from baton.types import SamplingParams

MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 300
MAX_STOP_TOKEN_IDS = 64  # of the client; the model's end-of-sequence ids join them
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_SEQUENCES = 2 * MAX_BAD_WORDS  # with and without a leading space
MAX_BAD_WORD_TOKENS = 64


def problem_with_choice(params: SamplingParams, vocab_size: int) -> str | None:
    """Why no token can be drawn at some position whatever the output is, or None.

    Words of several tokens do not count: where they would ban the last token left, `engine.bans` lets them pass.
    """
    banned = {word[0] for word in params.bad_words if len(word) == 1}
    if params.min_tokens:
        banned.update(params.stop_token_ids)
    if params.allowed_token_ids and banned.issuperset(params.allowed_token_ids):
        return (
            f"allowed_token_ids: got {len(params.allowed_token_ids)} ids that are all banned by bad_words or, until "
            "min_tokens, as ends of the answer; allow another one"
        )
    if len(banned) >= vocab_size:
        return (
            f"bad_words and stop_token_ids: got ones that ban all {vocab_size} tokens of the model; drop some, or set "
            "min_tokens to 0"
        )
    return None
