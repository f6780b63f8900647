"""Checksums of a model folder: SHA256SUMS in the format of sha256sum, and a cheap check that reads no weights."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from baton.errors import BatonError, ErrorCode
from baton.fetch.progress import Progress, no_progress
from baton.safetensors_file import expected_bytes

SUMS_FILE = "SHA256SUMS"
_CHUNK_BYTES = 4 << 20


def file_sha256(file: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hex SHA-256 of a file; `on_bytes` is called with the size of each chunk read."""
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()


def write_sums(folder: Path, progress: Progress = no_progress) -> None:
    """Writes SHA256SUMS over all other files of the folder, sorted by name."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and file.name != SUMS_FILE)
    sums = _sums(folder, names, progress)
    (folder / SUMS_FILE).write_text("".join(f"{sums[name]}  {name}\n" for name in names))


def read_sums(folder: Path) -> dict[str, str]:
    """File name to hex digest; empty when the folder has no SHA256SUMS."""
    file = folder / SUMS_FILE
    if not file.is_file():
        return {}
    pairs = (line.split("  ", 1) for line in file.read_text().splitlines() if line)
    return {name: digest for digest, name in pairs}


def quick_problem(folder: Path) -> str | None:
    """What is wrong with a fetched folder, or None. Weights are checked by size, which their header tells."""
    sums = read_sums(folder)
    if not sums:
        return f"{folder} has no {SUMS_FILE}"
    for name, expected in sums.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        if file.suffix == ".safetensors":
            size, wanted = file.stat().st_size, expected_bytes(file)
            if size != wanted:
                return f"{file}: got {size} bytes, expected {wanted}"
        elif (digest := file_sha256(file)) != expected:
            return f"{file}: got sha256 {digest}, expected {expected}"
    return None


def verify_sums(folder: Path, progress: Progress = no_progress) -> None:
    """Reads every file and compares with SHA256SUMS.

    Raises:
        BatonError: FAILED_PRECONDITION naming the first file that is missing or differs.
    """
    if (problem := quick_problem(folder)) is not None:
        raise BatonError(ErrorCode.FAILED_PRECONDITION, f"{problem}; fetch the model again with --force")
    expected = read_sums(folder)
    for name, digest in _sums(folder, expected, progress).items():
        if digest != expected[name]:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"{folder / name}: got sha256 {digest}, expected {expected[name]}; fetch the model again with --force",
            )


def _sums(folder: Path, names: Iterable[str], progress: Progress) -> dict[str, str]:
    files = [folder / name for name in names]
    total = sum(file.stat().st_size for file in files)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("check", done, total)

    progress("check", 0, total)
    return {file.name: file_sha256(file, advance) for file in files}
