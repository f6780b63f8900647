"""Rows of requests as files: JSON lines, and Parquet where pyarrow is there."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.bench.rows import RequestRow
from baton.errors import BatonError, ErrorCode, invalid

_DERIVED = ("ttft_ms", "tpot_ms", "max_gap_ms", "e2e_ms")  # in files for other tools; we read the others alone


def write_jsonl(path: Path, rows: Sequence[RequestRow]) -> None:
    """A row a line, with what follows from its arrivals."""
    path.write_bytes(b"".join(msgspec.json.encode(_plain(row)) + b"\n" for row in rows))


def write_parquet(path: Path, rows: Sequence[RequestRow]) -> None:
    """The same columns.

    Raises:
        BatonError: FAILED_PRECONDITION when pyarrow is missing.
    """
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([_plain(row) for row in rows]), path)


def check_parquet() -> None:
    """Raises:
    BatonError: FAILED_PRECONDITION when pyarrow is missing.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        message = f"--parquet needs pyarrow ({error}); install it with pip install pyarrow, or leave --parquet out"
        raise BatonError(ErrorCode.FAILED_PRECONDITION, message) from error


def read_rows(path: Path) -> list[RequestRow]:
    """Of a file that `write_jsonl` wrote.

    Raises:
        BatonError: INVALID_ARGUMENT with the number of a line that is no row.
    """
    decoder = msgspec.json.Decoder(RequestRow)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            message = (
                f"{path}, line {number}: got {line[:80]!r} ({error}), expected a row that `baton bench serve` wrote"
            )
            raise invalid(message) from error
    return rows


def _plain(row: RequestRow) -> dict[str, object]:
    """NaN, which JSON does not have, becomes null."""
    derived = {name: getattr(row, name) for name in _DERIVED}
    return msgspec.structs.asdict(row) | {
        name: None if value != value else round(value, 3) for name, value in derived.items()
    }
