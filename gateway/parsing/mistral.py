"""Tool calls of Mistral: `[TOOL_CALLS]` and a JSON list, or name and arguments as newer tokenizers write them."""

import secrets
import string

from gateway.parsing.base import AnswerParser, CallArguments, Content, Part, num_held_chars
from gateway.parsing.call_list import CallList
from gateway.parsing.json_value import Step, ValueScanner

_TAG = "[TOOL_CALLS]"
_ARGUMENTS_TAG = "[ARGS]"
_ID_CHARS = string.ascii_letters + string.digits


def _new_id() -> str:
    """Mistral's templates take ids of nine letters and digits only."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))


class MistralParser(AnswerParser):
    """Text in front of the first tag is content."""

    needs_special_tokens = True

    def __init__(self) -> None:
        self._calls = CallList(_new_id)
        self._held = ""
        self._in_list = False
        self._in_name = False
        self._value: ValueScanner | None = None  # of arguments behind a name

    def push(self, text: str) -> list[Part]:
        """Calls as far as they are certain."""
        self._held += text
        parts: list[Part] = []
        while self._held and (progress := self._advance()) is not None:
            parts += progress
        return parts

    def finish(self) -> list[Part]:
        """A tag or a name that was begun is content."""
        held, self._held = self._held, ""
        shown = held.strip() or (held and not self._calls.num_calls)
        rest: list[Part] = [Content(held)] if shown and not self._in_list else []
        return [*rest, *self._calls.finish()]

    def _advance(self) -> list[Part] | None:
        """One step into what is held; None when more text is needed first."""
        if self._value is not None:
            return self._arguments(self._value)
        if self._in_list:
            return self._list()
        return self._name() if self._in_name else self._outside()

    def _outside(self) -> list[Part] | None:
        """White space in front of a tag is not content, so it waits for what follows."""
        before, found, after = self._held.partition(_TAG)
        kept = before[: len(before) - (0 if found else num_held_chars(before, _TAG))].rstrip()
        self._held = after if found else self._held[len(kept) :]
        self._in_name = bool(found)
        if found or kept:
            return [Content(kept)] if kept else []
        return None

    def _name(self) -> list[Part] | None:
        text = self._held.lstrip()
        if not text:
            return None
        if text[0] in "[{":
            self._held, self._in_name, self._in_list = text, False, True
            return []
        head, brace, rest = text.partition("{")
        if not brace:
            return None
        name = head.removesuffix(_ARGUMENTS_TAG).partition("[CALL_ID]")[0].strip()
        self._held, self._in_name, self._value = brace + rest, False, ValueScanner()
        return [self._calls.start(name)]

    def _list(self) -> list[Part]:
        text, self._held = self._held, ""
        return self._calls.push(text)

    def _arguments(self, scanner: ValueScanner) -> list[Part]:
        for index, char in enumerate(self._held):
            if scanner.step(char) is Step.LAST:
                text, self._held = self._held[: index + 1], self._held[index + 1 :]
                self._value = None
                break
        else:
            text, self._held = self._held, ""
        return [CallArguments(self._calls.num_calls - 1, text)]
