"""What an answer must be: one grammar, of one of six kinds."""

import enum

import msgspec


class GrammarKind(enum.StrEnum):
    """The values are the names of the protocol's fields."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICE = "choice"
    STRUCTURAL_TAG = "structural_tag"


class StructuredOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A grammar as its author wrote it; equal ones are the same grammar."""

    kind: GrammarKind
    text: str = ""  # for neither JSON_OBJECT nor CHOICE
    choices: tuple[str, ...] = ()  # for CHOICE

    @property
    def num_bytes(self) -> int:
        """Of all its text, in UTF-8."""
        return sum(len(text.encode()) for text in (self.text, *self.choices))
