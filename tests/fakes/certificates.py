"""Throw-away certificate authorities and folders as --tls-dir takes them."""

from pathlib import Path

import trustme

from baton.tls import Tls


class Authority:
    """One authority; every certificate of it is for this host."""

    def __init__(self) -> None:
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.made = 0

    def write(self, folder: Path, with_certificate: bool = True, *names: str) -> Path:
        """A folder with this authority and, for whoever needs one, a new certificate; overwrites what is there."""
        folder.mkdir(exist_ok=True)
        self._ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        if with_certificate:
            issued = self._ca.issue_cert(*(names or ("127.0.0.1", "localhost")))
            self.made += 1
            issued.private_key_pem.write_to_path(str(folder / "key.pem"))
            (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return folder

    def tls(self, folder: Path, with_certificate: bool = True, mutual: bool = True) -> Tls:
        """Of one process."""
        return Tls(self.write(folder, with_certificate), mutual)
