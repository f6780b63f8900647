"""What several command lines read alike: sizes and addresses, from text to value."""

import argparse
import re

DEFAULT_KV_CACHE_BYTES = 1 << 30
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})", re.ASCII)


class BadArgument(argparse.ArgumentTypeError, ValueError):
    """Text that does not parse: "got …, expected …". argparse prints it behind the flag's name."""


def parse_bytes(text: str) -> int:
    """A size like 2GiB, 512MiB, 1.5GiB or 1048576. Raises BadArgument otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)", text.strip())
    if not match:
        raise BadArgument(f"got {text!r}, expected a size such as 2GiB, 512MiB or 1048576")
    return int(float(match[1]) * _UNITS[match[2]])


def show_bytes(num_bytes: int) -> str:
    """As `parse_bytes` reads it, in the largest unit that fits."""
    unit, size = max(((u, s) for u, s in _UNITS.items() if u and num_bytes % s == 0), key=lambda pair: pair[1])
    return f"{num_bytes // size}{unit}"


def parse_address(text: str) -> str:
    """host:port or [IPv6 address]:port, as it is. Raises BadArgument otherwise."""
    match = _ADDRESS.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise BadArgument(f"got {text!r}, expected host:port, such as 127.0.0.1:8080, without http:// or a path")
    return text
