"""Answers that are held to a tool's schema: a list of calls, or one call's arguments alone."""

from gateway.parsing.base import AnswerParser, CallArguments, CallStart, Part, new_call_id
from gateway.parsing.call_list import CallList


class RequiredCalls(AnswerParser):
    """A JSON list of `{"name": …, "parameters": {…}}` and nothing else."""

    def __init__(self) -> None:
        self._calls = CallList()

    def push(self, text: str) -> list[Part]:
        """The calls, as far as they are known."""
        return self._calls.push(text)

    def finish(self) -> list[Part]:
        """An object that was cut short before its name shows as content."""
        return self._calls.finish()


class NamedCall(AnswerParser):
    """The arguments of the one tool that the client has named."""

    ends_with_calls = False  # as OpenAI has it: "stop", since the client knew

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> list[Part]:
        """All of it is arguments."""
        if not text:
            return []
        parts: list[Part] = [] if self._begun else [CallStart(0, new_call_id(), self._name)]
        self._begun = True
        return [*parts, CallArguments(0, text)]

    def finish(self) -> list[Part]:
        """Nothing."""
        return []
