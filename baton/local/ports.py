"""TCP ports of this host: a free one, and whether a server can listen on a given one."""

import errno
import socket

from baton.errors import BatonError, ErrorCode, invalid


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_can_listen(host: str, port: int, flag: str = "--port") -> None:
    """For saying so before anything is started; the server itself says it too, when it gets to listening.

    Raises:
        BatonError: INVALID_ARGUMENT when `host` is no address of this machine, FAILED_PRECONDITION when somebody
            listens there already, or when this process may not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except (OSError, UnicodeError) as error:
            raise _cannot_listen(host, port, flag, error) from error


def _cannot_listen(host: str, port: int, flag: str, error: OSError | UnicodeError) -> BatonError:
    number = error.errno if isinstance(error, OSError) else None
    reason = getattr(error, "strerror", None) or str(error)
    if number == errno.EADDRINUSE:
        advice = f"choose another {flag}, or 0 for any free one"
    elif number == errno.EACCES:
        advice = f"choose a {flag} above 1023, or 0 for any free one"
    else:
        return invalid(
            f"got --host {host}, expected an address of this machine, such as 127.0.0.1 or 0.0.0.0 ({reason})"
        )
    return BatonError(ErrorCode.FAILED_PRECONDITION, f"cannot listen on {host}:{port} ({reason}); {advice}")
