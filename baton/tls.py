"""TLS of one process: a folder with its certificate and the authority it trusts, read again when the files change.

    ca.pem     certificates of the authorities that others' certificates must come from
    cert.pem   this process's certificate, with the chain below its authority
    key.pem    its private key

A process that only calls others needs ca.pem alone, unless they ask for a certificate (`mutual`).
"""

import logging
import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc

from baton.errors import BatonError, ErrorCode

logger = logging.getLogger(__name__)

_CA, _CERT, _KEY = "ca.pem", "cert.pem", "key.pem"
DIR_VARIABLE, MUTUAL_VARIABLE = "BATON_TLS_DIR", "BATON_MTLS"
TLS_DIR_HELP = "folder with ca.pem, cert.pem and key.pem: TLS towards everybody (docs/security.md); default: none"
MTLS_HELP = "with --tls-dir: whoever calls needs a certificate, too"
_TRUE = ("1", "true", "yes", "on")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class _Files(NamedTuple):
    """What the folder holds; cert and key: None where they are missing."""

    ca: bytes
    cert: bytes | None
    key: bytes | None


class Tls:
    """One a process; used by several threads, gRPC's included."""

    def __init__(self, folder: Path, mutual: bool = False) -> None:
        """`mutual`: servers take only calls from holders of a certificate.

        Raises:
            BatonError: FAILED_PRECONDITION when a file is missing or holds no certificate or key.
        """
        self.folder = folder
        self.mutual = mutual
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._files = self._read()
        self._generation = 0
        self._contexts: list[ssl.SSLContext] = []  # HTTP servers', to be renewed

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """What BATON_TLS_DIR and BATON_MTLS say; None when there is no folder."""
        folder = environ.get(DIR_VARIABLE, "")
        return cls(Path(folder), environ.get(MUTUAL_VARIABLE, "").lower() in _TRUE) if folder else None

    @property
    def generation(self) -> int:
        """Grows when the files have changed; looks."""
        with self._lock:
            self._renew()
            return self._generation

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server; each handshake uses the files as they are then.

        Raises:
            BatonError: FAILED_PRECONDITION without certificate and key.
        """
        self._check_can_serve()
        told = -1

        def newest() -> Any:
            nonlocal told
            generation = self.generation
            if generation == told:
                return None
            told = generation
            return self._certificate_config()

        return grpc.dynamic_ssl_server_credentials(self._certificate_config(), newest, self.mutual)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is made now; see `generation` for when to make another one."""
        files = self._files
        return grpc.ssl_channel_credentials(files.ca, files.key, files.cert)

    def server_context(self) -> ssl.SSLContext:
        """For an HTTP server; handshakes use the certificate as it is at the last look (`generation`).

        An authority that is taken out of ca.pem is trusted until the process ends; new ones are at once.

        Raises:
            BatonError: FAILED_PRECONDITION without certificate and key.
        """
        self._check_can_serve()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_NONE
        self._load(context)
        self._contexts.append(context)
        return context

    def _certificate_config(self) -> Any:
        files = self._files
        assert files.key is not None
        assert files.cert is not None
        return grpc.ssl_server_certificate_configuration([(files.key, files.cert)], files.ca)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.folder / _CERT, self.folder / _KEY)
        context.load_verify_locations(self.folder / _CA)

    def _renew(self) -> None:
        """Files that do not fit together, as in the middle of a change, change nothing."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        try:
            files = self._read()
            for context in self._contexts:
                self._load(context)
        except (BatonError, OSError) as error:
            logger.warning("keeping the certificates as they were: %s", error)
        else:
            self._files = files
            self._generation += 1
            logger.info("read new certificates from %s", self.folder)
        self._stamp = stamp

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(self.folder / name) for name in (_CA, _CERT, _KEY))

    def _read(self) -> _Files:
        try:
            ca = (self.folder / _CA).read_bytes()
            # Raises where a file is no PEM, or where key and certificate are no pair.
            probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            probe.load_verify_locations(self.folder / _CA)
            if not (self.folder / _CERT).exists():
                return _Files(ca, None, None)
            cert, key = (self.folder / _CERT).read_bytes(), (self.folder / _KEY).read_bytes()
            probe.load_cert_chain(self.folder / _CERT, self.folder / _KEY)
        except OSError as error:  # ssl.SSLError is one
            raise self._unusable(f"{error.filename or ''} {error}".strip()) from error
        return _Files(ca, cert, key)

    def _check_can_serve(self) -> None:
        if self._files.cert is None:
            raise self._unusable(f"{_CERT} is missing")

    def _unusable(self, why: str) -> BatonError:
        return BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"--tls-dir {self.folder}: {why}; expected {_CA}, and {_CERT} with its {_KEY} in PEM",
        )


def make_tls(folder: str | Path | None, mutual: bool) -> Tls | None:
    """For the flags --tls-dir and --mtls.

    Raises:
        BatonError: INVALID_ARGUMENT for --mtls alone; as `Tls`.
    """
    if folder is None:
        if mutual:
            raise BatonError(ErrorCode.INVALID_ARGUMENT, "got --mtls without --tls-dir; add the folder of certificates")
        return None
    return Tls(Path(folder), mutual)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
