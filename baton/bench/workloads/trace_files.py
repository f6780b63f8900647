"""Recorded loads as files: Mooncake's JSON lines, and CSV of arrival, input and output lengths."""

import csv
from pathlib import Path

import msgspec

from baton.errors import BatonError, invalid

BLOCK_TOKENS = 512  # what one hash id of a Mooncake trace stands for


class TraceLine(msgspec.Struct, frozen=True):
    """One request of a trace."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_mooncake(path: Path) -> list[TraceLine]:
    """Lines such as {"timestamp": 27, "input_length": 900, "output_length": 52, "hash_ids": [0, 7]}; timestamp in ms.

    The format of https://github.com/kvcache-ai/Mooncake (FAST'25 traces): equal ids at the same place stand for equal
    512 tokens; the last id's block may be cut off.

    Raises:
        BatonError: INVALID_ARGUMENT with the number of a line that is malformed.
    """
    decoder = msgspec.json.Decoder(_MooncakeLine)
    lines = []
    for number, text in enumerate(_read(path).splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise _malformed(path, number, f"{text[:80]!r} ({error})", _MOONCAKE_EXAMPLE) from error
        if min(line.input_length, line.output_length) < 1 or line.timestamp < 0 or min(line.hash_ids, default=0) < 0:
            raise _malformed(
                path, number, repr(text[:80]), f"lengths above 0 and no negative number: {_MOONCAKE_EXAMPLE}"
            )
        blocks = -(-line.input_length // BLOCK_TOKENS)
        if len(line.hash_ids) > blocks:
            got = f"{len(line.hash_ids)} hash ids for {line.input_length} tokens"
            raise _malformed(path, number, got, f"at most {blocks}, one for each {BLOCK_TOKENS} tokens")
        lines.append(TraceLine(line.timestamp / 1e3, line.input_length, line.output_length, tuple(line.hash_ids)))
    return _in_order(path, lines)


def read_csv(path: Path) -> list[TraceLine]:
    """A header `arrival_s,input_tokens,output_tokens`, then a request a line.

    Raises:
        BatonError: INVALID_ARGUMENT with the number of a line that is malformed.
    """
    rows = csv.reader(_read(path).splitlines())
    header = [name.strip() for name in next(rows, [])]
    if header != list(_CSV_HEADER):
        raise _malformed(path, 1, ",".join(header), ",".join(_CSV_HEADER))
    lines = []
    for row in rows:
        if not row:
            continue
        try:
            arrival_s, input_tokens, output_tokens = float(row[0]), int(row[1]), int(row[2])
        except (ValueError, IndexError) as error:
            raise _malformed(path, rows.line_num, ",".join(row), "three numbers, as in 0.25,900,52") from error
        if len(row) != len(_CSV_HEADER) or not 0 <= arrival_s < float("inf") or min(input_tokens, output_tokens) < 1:
            raise _malformed(path, rows.line_num, ",".join(row), "a time from 0 on and two lengths above 0")
        lines.append(TraceLine(arrival_s, input_tokens, output_tokens))
    return _in_order(path, lines)


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


_CSV_HEADER = ("arrival_s", "input_tokens", "output_tokens")
_MOONCAKE_EXAMPLE = '{"timestamp": 27, "input_length": 900, "output_length": 52, "hash_ids": [0, 7]}'


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"--trace {path}: cannot be read ({error}); name a trace in JSON lines or CSV") from error


def _in_order(path: Path, lines: list[TraceLine]) -> list[TraceLine]:
    """By arrival, the first at 0."""
    if not lines:
        raise invalid(f"--trace {path}: got no request, expected one a line")
    lines.sort(key=lambda line: line.arrival_s)
    start_s = lines[0].arrival_s
    return [msgspec.structs.replace(line, arrival_s=line.arrival_s - start_s) for line in lines]


def _malformed(path: Path, number: int, got: str, expected: str) -> BatonError:
    return invalid(f"--trace {path}, line {number}: got {got}, expected {expected}")
