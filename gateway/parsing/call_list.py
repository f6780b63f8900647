"""Tool calls as JSON objects one behind the other, with or without a list around them."""

from collections.abc import Callable, Iterator

from gateway.parsing.base import CallArguments, CallStart, Content, Part, new_call_id
from gateway.parsing.call_object import CallObject, NotACall

_BETWEEN = " \t\r\n,;[]"


class CallList:
    """Numbers the calls of one answer. After something that is no call, all that follows is content."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.num_calls = 0
        self.broken = False
        self._new_id = new_id
        self._object: CallObject | None = None
        self._raw: list[str] = []  # of an object whose name is not known yet
        self._named = False

    @property
    def between(self) -> bool:
        """Whether no object is under way."""
        return self._object is None

    def push(self, text: str) -> list[Part]:
        """The calls, as far as they are known."""
        return [part for part in self._push(text) if not isinstance(part, CallArguments | Content) or part.text]

    def finish(self) -> list[Part]:
        """An object that was not even named shows as content."""
        raw, self._raw = "".join(self._raw), []
        return [Content(raw)] if raw else []

    def start(self, name: str) -> CallStart:
        """A call whose name was told outside of JSON."""
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self._new_id(), name)

    def _push(self, text: str) -> Iterator[Part]:
        for index, char in enumerate(text):
            if self.broken:
                yield Content(text[index:])
                return
            if self._object is None:
                if char in _BETWEEN:
                    continue
                self._object, self._named = CallObject(), False
            if not self._named:
                self._raw.append(char)
            yield from self._step(self._object, char)
        yield from self._arguments()

    def _step(self, call: CallObject, char: str) -> Iterator[Part]:
        try:
            call.push(char)
        except NotACall:
            yield from self._arguments()
            self.broken, self._object = True, None
            yield from self.finish()
            return
        if call.name is not None and not self._named:
            self._named, self._raw = True, []
            yield self.start(call.name)
        if call.done:
            yield from self._arguments()
            self._object = None

    def _arguments(self) -> Iterator[Part]:
        if self._object is not None and self._named:
            yield CallArguments(self.num_calls - 1, self._object.take_arguments())
