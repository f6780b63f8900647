"""Tool calls of Llama 3: the whole answer is `{"name": …, "parameters": {…}}`, several with `;` in between."""

from gateway.parsing.base import AnswerParser, Content, Part
from gateway.parsing.call_list import CallList

_TAG = "<|python_tag|>"


class Llama3Parser(AnswerParser):
    """An answer that begins with anything else has no calls."""

    def __init__(self) -> None:
        self._calls = CallList()
        self._held = ""  # the beginning, until it is clear what the answer is
        self._is_calls: bool | None = None

    def push(self, text: str) -> list[Part]:
        """Nothing before the first character that is neither white space nor the tag's."""
        if self._is_calls is None:
            self._held += text
            begins = self._held.lstrip()
            if not begins or (_TAG.startswith(begins) and begins != _TAG):
                return []
            begins = begins.removeprefix(_TAG).lstrip()
            if not begins:
                return []
            self._is_calls = begins[0] == "{"
            text, self._held = begins if self._is_calls else self._held, ""
        if self._is_calls:
            return self._calls.push(text)
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """What never became clear is content."""
        held, self._held = self._held, ""
        return [Content(held)] if held else self._calls.finish()
