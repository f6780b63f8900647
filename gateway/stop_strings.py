"""Stop strings found across token borders: only text that cannot be the beginning of one gets out."""

from collections.abc import Sequence


class StopStrings:
    """Searches a text that arrives in pieces; the result does not depend on where the pieces are cut.

    The stop string that ends first wins, and of several that end together the longest.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool) -> None:
        """`stops` holds no empty string."""
        self._stops = tuple(stops)
        self._include = include_in_output
        self._beginnings = frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self._exempt_chars = 0  # of `_held`, from its start on: no stop string may end in them
        self.found = False

    def push(self, text: str, exempt: bool = False) -> str:
        """The text that is safe to emit. After `found` has become true everything is dropped.

        A stop string that ends in `exempt` text does not count; one that only begins in it does.
        """
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        self._exempt_chars = len(text) if exempt else self._exempt_chars
        match = self._first_match(text)
        if match is not None:
            start, end = match
            self.found, self._held = True, ""
            return text[:end] if self._include else text[:start]
        held_chars = self._held_chars(text)
        safe_chars = len(text) - held_chars
        self._held, self._exempt_chars = text[safe_chars:], max(0, self._exempt_chars - safe_chars)
        return text[:safe_chars]

    def flush(self) -> str:
        """What is held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        starts = ((text.find(stop, max(0, self._exempt_chars - len(stop) + 1)), stop) for stop in self._stops)
        matches = [(start, start + len(stop)) for start, stop in starts if start >= 0]
        return min(matches, key=lambda match: (match[1], match[0]), default=None)

    def _held_chars(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
