"""The parts of an answer, and what takes one apart."""

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Some of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Some of what the model thinks before."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool is called; its arguments follow."""

    index: int  # which call of the answer
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some of a call's arguments: all of them together are JSON."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class AnswerParser(ABC):
    """Takes one answer's text in pieces, however it is cut. A parser never fails: what it cannot read is content."""

    # Whether a call in the answer makes "tool_calls" of the finish reason "stop".
    ends_with_calls = True
    # Whether special tokens must be in the text, because the format is made of them.
    needs_special_tokens = False

    @abstractmethod
    def push(self, text: str) -> list[Part]:
        """What is certain after this piece."""

    @abstractmethod
    def finish(self) -> list[Part]:
        """What was held back; called once, after the last piece."""


class PlainText(AnswerParser):
    """All of it is content."""

    def push(self, text: str) -> list[Part]:
        """The text."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Nothing."""
        return []


def new_call_id() -> str:
    """As OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def num_held_chars(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
