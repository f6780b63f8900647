"""Who sends a request, where there are no API keys: its address."""

from urllib.parse import unquote

from gateway.admission.base import Client


def client_at(peer: str) -> Client:
    """All connections of one address are one client, be they gRPC's or HTTP's.

    Args:
        peer: as gRPC writes it ("ipv4:10.0.0.1:4711", "ipv6:%5B::1%5D:4711"), or the address alone.
    """
    kind, colon, rest = peer.partition(":")
    if not colon or kind not in ("ipv4", "ipv6"):
        return Client(peer)
    return Client(unquote(rest.rpartition(":")[0]).strip("[]"))
