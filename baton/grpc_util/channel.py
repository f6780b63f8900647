"""Channels to other processes, with TLS or without."""

from collections.abc import Sequence
from typing import Any

import grpc

from baton.tls import Tls

Options = Sequence[tuple[str, Any]]


def open_channel(address: str, tls: Tls | None, options: Options) -> grpc.aio.Channel:
    """For an event loop. With `tls` the server's certificate must name the host of `address`."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def open_blocking_channel(address: str, tls: Tls | None, options: Options = ()) -> grpc.Channel:
    """For threads."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.channel_credentials(), options=options)
