"""Regular expressions that xgrammar would compile to something else than they say; it only prints a warning."""

# Letters and digits with a meaning behind a backslash. Others would stand for themselves: \p{L} for "p{L}".
_KNOWN_ESCAPES = frozenset("dDwWsSnrtfve0xuc")


def problem_with_regex(pattern: str) -> str | None:
    """Why `pattern` would not be enforced as it is written, or None; syntax is the compiler's business."""
    in_class = escaped = False
    for index, char in enumerate(pattern):
        if escaped:
            escaped = False
            if char.isalnum() and char.isascii() and char not in _KNOWN_ESCAPES and not _refused_by_compiler(char):
                return f"got the escape \\{char} at position {index}, which is not known; spell out what it stands for"
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "^" and index > 0:
            return f"got ^ at position {index}, expected it at the start only, or escaped"
        elif char == "$" and index < len(pattern) - 1:
            return f"got $ at position {index}, expected it at the end only, or escaped"
    return None


def _refused_by_compiler(char: str) -> bool:
    """Word boundaries and backreferences, for which it has messages of its own."""
    return char in "bBk123456789"
