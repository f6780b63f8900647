"""TCP ports of this host: a free one, and whether a given one is."""

import socket

from baton.errors import BatonError, ErrorCode


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port_free(host: str, port: int) -> None:
    """Raises:
    BatonError: FAILED_PRECONDITION when somebody listens there.

    For saying so before anything is started; the server itself says it too, when it gets to listening.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --port, or 0 for any free one",
            ) from error
