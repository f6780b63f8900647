"""One tool call written as a JSON object, read letter by letter: its name as a whole, its arguments as they come."""

import enum
import json
from typing import Any

from gateway.parsing.json_value import Step, ValueScanner

_SPACES = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_NAME = "name"


class NotACall(Exception):
    """The text is no object with a name and arguments."""


class _Phase(enum.Enum):
    BRACE = enum.auto()
    KEY = enum.auto()
    IN_KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    IN_VALUE = enum.auto()
    COMMA = enum.auto()
    DONE = enum.auto()


class CallObject:
    """`{"name": …, "arguments": {…}}` in either order; models of Llama's line say "parameters"."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._phase = _Phase.BRACE
        self._scanner = ValueScanner()
        self._key = ""
        self._pieces: list[str] = []  # of the key or value under way
        self._fresh: list[str] = []  # of the arguments, not taken yet
        self._has_arguments = False
        self._streams = False  # the value under way is an object of arguments

    @property
    def done(self) -> bool:
        """Whether the object is complete."""
        return self._phase is _Phase.DONE

    def push(self, char: str) -> None:
        """Raises:
        NotACall: The object is another one, or no JSON.
        """
        match self._phase:
            case _Phase.IN_KEY:
                self._in_key(char)
            case _Phase.IN_VALUE:
                self._in_value(char)
            case _ if char in _SPACES:
                return
            case _Phase.VALUE:
                self._begin_value(char)
            case _Phase.BRACE:
                self._expect(char, {"{": _Phase.KEY})
            case _Phase.KEY:
                self._begin_key(char)
            case _Phase.COLON:
                self._expect(char, {":": _Phase.VALUE})
            case _:
                self._after_value(char)

    def take_arguments(self) -> str:
        """What has become known of them since the last call; nothing before the name is known."""
        if self.name is None:
            return ""
        fresh, self._fresh = "".join(self._fresh), []
        return fresh

    def _expect(self, char: str, then: dict[str, _Phase]) -> None:
        if char not in then:
            raise NotACall(f"got {char!r}, expected one of {', '.join(then)}")
        self._phase = then[char]

    def _begin_key(self, char: str) -> None:
        self._expect(char, {'"': _Phase.IN_KEY, "}": _Phase.DONE})
        if char == "}":
            self._end()
        else:
            self._start_value(char)

    def _start_value(self, char: str) -> None:
        self._scanner, self._pieces = ValueScanner(), [char]
        self._scanner.step(char)

    def _in_key(self, char: str) -> None:
        self._pieces.append(char)
        if self._scanner.step(char) is Step.LAST:
            self._key = str(_parsed("".join(self._pieces)))
            self._phase = _Phase.COLON

    def _begin_value(self, char: str) -> None:
        if char in ",:]}":
            raise NotACall(f"got {char!r}, expected a value")
        self._phase = _Phase.IN_VALUE
        self._streams = self._key in _ARGUMENTS and char == "{"
        if self._streams:
            self._fresh.append(char)
        self._start_value(char)

    def _in_value(self, char: str) -> None:
        step = self._scanner.step(char)
        if step is Step.BEYOND:
            self._end_value()
            if char not in _SPACES:
                self._after_value(char)
            return
        self._pieces.append(char)
        if self._streams:
            self._fresh.append(char)
        if step is Step.LAST:
            self._end_value()

    def _end_value(self) -> None:
        self._phase = _Phase.COMMA
        if self._key in _ARGUMENTS:
            self._has_arguments = True
            if not self._streams:
                self._fresh.append(_arguments_text(_parsed("".join(self._pieces))))
        elif self._key == _NAME:
            name = _parsed("".join(self._pieces))
            if not isinstance(name, str) or not name:
                raise NotACall(f"got name {name!r}, expected a text")
            self.name = name

    def _after_value(self, char: str) -> None:
        self._expect(char, {",": _Phase.KEY, "}": _Phase.DONE})
        if char == "}":
            self._end()

    def _end(self) -> None:
        if self.name is None:
            raise NotACall("got an object without a name")
        if not self._has_arguments:
            self._fresh.append("{}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise NotACall(str(error)) from error


def _arguments_text(value: Any) -> str:
    """Some models write the arguments as a text that holds JSON, or null for none."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value
    raise NotACall(f"got arguments of type {type(value).__name__}, expected an object")
