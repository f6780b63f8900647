"""Reasoning in front of an answer: what stands between `<think>` and `</think>`."""

from collections.abc import Iterator

from gateway.parsing.base import AnswerParser, Part, Reasoning, num_held_chars

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser(AnswerParser):
    """Hands what follows the reasoning to the parser for the rest. White space around either is dropped."""

    def __init__(self, rest: AnswerParser, begins_inside: bool) -> None:
        """`begins_inside`: the prompt has the opening tag, or the model leaves it out."""
        self._rest = rest
        self._state = "inside" if begins_inside else "before"
        self._held = ""
        self._silent = True  # nothing but white space has come since the last tag
        self.ends_with_calls = rest.ends_with_calls
        self.needs_special_tokens = rest.needs_special_tokens

    def push(self, text: str) -> list[Part]:
        """Reasoning up to what may be a tag; then what the other parser says."""
        self._held += text
        return list(self._advance())

    def finish(self) -> list[Part]:
        """What was held back belongs to where the answer stands."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return [Reasoning(held)] if held.strip() and not CLOSE.startswith(held.strip()) else []
        return [*(self._rest.push(held) if held.strip() else []), *self._rest.finish()]

    def _advance(self) -> Iterator[Part]:
        if self._state == "before":
            begins = self._held.lstrip()
            if not begins or (OPEN.startswith(begins) and begins != OPEN):
                return
            inside = begins.startswith(OPEN)
            self._state = "inside" if inside else "behind"
            if inside:
                self._held = begins.removeprefix(OPEN)
        if self._state == "inside":
            yield from self._reason()
        if self._state == "behind" and self._held:
            yield from self._content()

    def _reason(self) -> Iterator[Part]:
        text, found, after = self._held.partition(CLOSE)
        keep = 0 if found else num_held_chars(text, CLOSE)
        shown = text[: len(text) - keep]
        self._held = after if found else text[len(shown) :]
        if self._silent:
            shown = shown.lstrip()
        kept = shown.rstrip()  # white space waits for what follows
        if kept:
            self._silent = False
            yield Reasoning(kept)
        if found:
            self._state, self._silent = "behind", True
        else:
            self._held = shown[len(kept) :] + self._held

    def _content(self) -> Iterator[Part]:
        text, self._held = self._held, ""
        if self._silent and not (text := text.lstrip()):
            return
        self._silent = False
        yield from self._rest.push(text)
