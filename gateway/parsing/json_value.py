"""Finds the end of a JSON value that arrives letter by letter."""

import enum

_SPACES = " \t\r\n"


class Step(enum.Enum):
    """What a character was for the value."""

    PART = enum.auto()
    LAST = enum.auto()  # the value ends with it
    BEYOND = enum.auto()  # the value has ended before it: numbers and words end by what follows


class ValueScanner:
    """Follows brackets and strings only: what is between them is for a parser, once the value is complete."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self._begun = False

    def step(self, char: str) -> Step:
        """The first character that is given must belong to the value."""
        first, self._begun = not self._begun, True
        if self._in_string:
            return self._in_text(char)
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            if self._depth == 0:
                return Step.BEYOND
            self._depth -= 1
            return Step.LAST if self._depth == 0 else Step.PART
        elif self._depth == 0 and not first and (char in _SPACES or char == ","):
            return Step.BEYOND
        return Step.PART

    def _in_text(self, char: str) -> Step:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            return Step.LAST if self._depth == 0 else Step.PART
        return Step.PART
