"""Tool calls of Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` among other text."""

from collections.abc import Iterator

from gateway.parsing.base import AnswerParser, Content, Part, num_held_chars
from gateway.parsing.call_list import CallList

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(AnswerParser):
    """White space around calls is not content."""

    def __init__(self) -> None:
        self._calls = CallList()
        self._held = ""  # may be the beginning of a tag, or white space in front of one
        self._inside = False

    def push(self, text: str) -> list[Part]:
        """Content up to what may be a tag; calls as `CallList` reads them."""
        self._held += text
        return list(self._advance())

    def finish(self) -> list[Part]:
        """A tag that was begun is content."""
        held, self._held = self._held, ""
        if self._inside:
            cut_short = [] if self._calls.between else self._calls.push(held)
            return [*cut_short, *self._calls.finish()]
        return [Content(held)] if held.strip() or (held and not self._calls.num_calls) else []

    def _advance(self) -> Iterator[Part]:
        while self._held:
            tag = _CLOSE if self._inside else _OPEN
            before, found, after = self._held.partition(tag)
            if not found:
                keep = num_held_chars(self._held, tag)
                before, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
                yield from self._text(before)
                return
            yield from self._text(before, whole=True)
            if self._inside:
                yield from self._calls.finish()
            self._held, self._inside = after, not self._inside

    def _text(self, text: str, whole: bool = False) -> Iterator[Part]:
        """Outside of tags white space waits for what follows; next to a tag (`whole`) or a call it is dropped."""
        if self._inside:
            yield from self._calls.push(text)
            return
        kept = text.rstrip()
        if kept:
            yield Content(kept)
        if not whole and (kept or not self._calls.num_calls):
            self._held = text[len(kept) :] + self._held
