"""The address that a worker tells others, where it finds it out itself."""

import socket
from urllib.parse import urlsplit

from baton.errors import BatonError, ErrorCode, invalid

AUTO = "auto"  # of --advertise-address
_REDIS_PORT = 6379


def own_address(redis_url: str) -> str:
    """This machine's address in the network that Redis is in, and so the stack; [in brackets] for IPv6. Sends nothing.

    In a container that is the container's address, on a host with several networks the right one of them.

    Raises:
        BatonError: INVALID_ARGUMENT for a URL without a host, FAILED_PRECONDITION when the host has no address.
    """
    url = urlsplit(redis_url)
    if not url.hostname:
        raise invalid(f"got --advertise-address auto with --redis-url {redis_url}, expected a URL with a host")
    try:
        family, _, _, _, target = socket.getaddrinfo(url.hostname, url.port or _REDIS_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)  # of UDP: chooses a route and nothing else
            host = str(sock.getsockname()[0])
    except OSError as error:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"--advertise-address auto: there is no way to {url.hostname} ({error}); start Redis first, or give "
            "HOST:PORT that gateways and other workers can reach",
        ) from error
    return f"[{host}]" if ":" in host else host
