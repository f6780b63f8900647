"""API keys: how they are made, kept in a file as hashes, and compared.

A key is "bt-ID-SECRET". The id may be known and logged; it finds the entry, whose hash is compared in constant time.
The secret has 256 random bits, so that a plain SHA-256 needs no salt and no stretching.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

import msgspec

from baton.errors import BatonError, ErrorCode

_KEY = re.compile(r"bt-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NO_HASH = "0" * 64
MAX_KEYS = 100_000


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the file. A limit that is not given does not exist."""

    name: str  # whose it is: shares and limits are by key, messages name it
    id: str
    sha256: str  # of the whole key
    weight: float = 1.0  # its share when others wait, too
    requests_per_minute: float | None = None
    max_concurrent: int | None = None  # requests, waiting ones included
    max_tokens: int | None = None  # of one answer
    admin: bool = False  # may use baton.v1.Admin


class KeyBook:
    """The keys of one file."""

    def __init__(self, keys: list[ApiKey]) -> None:
        """Raises:
        BatonError: INVALID_ARGUMENT naming the first entry that cannot be.
        """
        self._by_id: dict[str, ApiKey] = {}
        if len(keys) > MAX_KEYS:
            raise _bad(f"got {len(keys)} keys, expected at most {MAX_KEYS}")
        for key in keys:
            _check(key)
            if key.id in self._by_id:
                raise _bad(f"key {key.name!r} has the id {key.id} of another one; make a new key")
            self._by_id[key.id] = key

    @property
    def keys(self) -> list[ApiKey]:
        """All of them."""
        return list(self._by_id.values())

    def find(self, presented: str) -> ApiKey | None:
        """The key's entry. As much time passes for an unknown id as for a wrong secret."""
        match = _KEY.fullmatch(presented)
        found = self._by_id.get(match[1]) if match else None
        same = hmac.compare_digest(hash_of(presented), found.sha256 if found else _NO_HASH)
        return found if same else None


def new_key() -> str:
    """A fresh one; whoever gets it keeps it, for nothing here does."""
    return f"bt-{secrets.token_hex(8)}-{secrets.token_urlsafe(32)}"


def id_of(key: str) -> str:
    """Raises:
    BatonError: INVALID_ARGUMENT when `key` is none that `new_key` makes; the message does not show it.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise BatonError(
            ErrorCode.INVALID_ARGUMENT,
            f"got {len(key)} characters that are no API key, expected bt-ID-SECRET; make one with `baton key new`",
        )
    return match[1]


def hash_of(key: str) -> str:
    """As the file has it."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read_keys(file: Path) -> KeyBook:
    """Raises:
    BatonError: FAILED_PRECONDITION when it cannot be read, INVALID_ARGUMENT when it is no file of keys.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION, f"cannot read the API keys in {file} ({error}); see `baton key new --help`"
        ) from error
    try:
        return KeyBook(msgspec.json.decode(data, type=list[ApiKey]))
    except msgspec.DecodeError as error:
        raise _bad(f"{file} is no JSON list of keys ({error})") from error
    except BatonError as error:
        raise _bad(f"{file}: {error.message}") from error


def write_keys(file: Path, keys: list[ApiKey]) -> None:
    """At once, readable by its owner only."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    partial.touch(mode=0o600)
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
    partial.replace(file)


def _check(key: ApiKey) -> None:
    if not _NAME.fullmatch(key.name):
        raise _bad(f"name: got {key.name[:80]!r}, expected at most 64 letters, digits, dots, dashes, underscores")
    if not re.fullmatch(r"[0-9a-f]{16}", key.id) or not re.fullmatch(r"[0-9a-f]{64}", key.sha256):
        raise _bad(f"key {key.name!r}: expected an id of 16 and a sha256 of 64 hex digits; use `baton key`")
    if not 0.001 <= key.weight <= 1000:
        raise _bad(f"key {key.name!r}: got weight {key.weight}, expected 0.001 to 1000")
    for limit in ("requests_per_minute", "max_concurrent", "max_tokens"):
        value = getattr(key, limit)
        if value is not None and not 0 < value <= 1e9:
            raise _bad(f"key {key.name!r}: got {limit} {value}, expected above 0; leave it out for none")


def _bad(message: str) -> BatonError:
    return BatonError(ErrorCode.INVALID_ARGUMENT, message)
