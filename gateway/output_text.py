"""One answer's text: detokenized, searched for stop strings, safe to send."""

import time

from gateway.detokenizer import Detokenizer
from gateway.no_text import NoDetokenizer
from gateway.stop_strings import StopStrings


class OutputText:
    """Takes an answer's tokens in order. Once `stopped` is true the answer is over, whatever comes after."""

    def __init__(
        self,
        detokenizer: Detokenizer | NoDetokenizer,
        stop_strings: StopStrings,
        stop_token_ids: frozenset[int],
        min_tokens: int,
    ) -> None:
        """A stop string does not count where it ends in the first `min_tokens` tokens, as in vLLM.

        Args:
            stop_token_ids: tokens that have no place in the text
        """
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.seconds = 0.0  # spent here
        self.first_unix_ns = 0
        self.last_unix_ns = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stop_strings.found

    def push(self, token_id: int) -> str:
        """The text that can be sent after this token."""
        started = time.perf_counter()
        self._num_tokens += 1
        text = "" if token_id in self._stop_token_ids else self._detokenizer.push(token_id)
        text = self._stop_strings.push(text, exempt=self._num_tokens <= self._min_tokens)
        self.seconds += time.perf_counter() - started
        self.last_unix_ns = time.time_ns()
        self.first_unix_ns = self.first_unix_ns or self.last_unix_ns
        return text

    def finish(self) -> str:
        """What was held back; called once, after the last token."""
        if self.stopped:
            return ""
        return self._stop_strings.push(self._detokenizer.flush()) + self._stop_strings.flush()
