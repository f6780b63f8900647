"""Whether two folders hold the same model: a fingerprint that is cheap to take."""

import hashlib
from pathlib import Path

_CHECKSUMS = "SHA256SUMS"
_MAX_HEADER_BYTES = 64 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10
DUMMY_SEED = 0  # of the random weights of --load-format dummy


def fingerprint(folder: Path) -> str:
    """The first 16 hex digits of a SHA-256 over config.json, tokenizer.json and the safetensors files.

    Of each of the latter: its name, its size, and its header, which lists all tensors with shapes and offsets. The
    weights' values come in by SHA256SUMS, where the folder has that file (`baton fetch` writes it). Where it has not,
    64 KiB at 64 evenly spaced offsets of each safetensors file are hashed, both ends among them, and a file of up to
    4 MiB as a whole. That tells a model from another training of it, but not from one changed in a few places only.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", _CHECKSUMS):
        file = folder / name
        digest.update(name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b"") + b"\0")
    has_checksums = (folder / _CHECKSUMS).is_file()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode() + b"\0" + str(file.stat().st_size).encode() + b"\0" + _header(file))
        if not has_checksums:
            _update_with_samples(digest, file)
    return digest.hexdigest()[:16]


def dummy_fingerprint(folder: Path) -> str:
    """Of random weights for a folder's configuration: 16 hex digits over config.json, tokenizer.json and the seed."""
    digest = hashlib.sha256(b"dummy\0%d\0" % DUMMY_SEED)
    for name in ("config.json", "tokenizer.json"):
        file = folder / name
        digest.update(name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b"") + b"\0")
    return digest.hexdigest()[:16]


def _header(file: Path) -> bytes:
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        return handle.read(min(size, _MAX_HEADER_BYTES))


def _update_with_samples(digest: "hashlib._Hash", file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as handle:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(handle.read())
            return
        for index in range(_SAMPLES):
            handle.seek((size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE_BYTES))
