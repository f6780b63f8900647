"""Makes a connector's sender or receiver by name, importing only the one that was asked for."""

from typing import TYPE_CHECKING

from baton.errors import BatonError, ErrorCode, invalid
from kv_transfer.base import KVReceiver, KVSender, PoolRegion
from kv_transfer.tether.listener import TetherOptions

if TYPE_CHECKING:
    from kv_transfer.inproc_network import InprocNetwork

CONNECTORS = ("inproc", "nixl")


def make_sender(
    connector: str, region: PoolRegion, worker_name: str, network: "InprocNetwork | None" = None
) -> KVSender:
    """The prefill side over the pool at `region`; `network` is for `inproc` only.

    Raises:
        BatonError: INVALID_ARGUMENT for an unknown name, FAILED_PRECONDITION when the connector cannot work here.
    """
    if connector == "nixl":
        from kv_transfer.nixl import NixlSender

        return NixlSender(region, worker_name)
    if connector == "inproc":
        from kv_transfer.inproc import InprocSender

        return InprocSender(region, worker_name, _required(network))
    raise _unknown(connector)


def make_receiver(
    connector: str,
    region: PoolRegion,
    worker_name: str,
    network: "InprocNetwork | None" = None,
    tether: TetherOptions | None = None,
) -> KVReceiver:
    """The decode side over the pool at `region`; `tether` is for `nixl` only. Otherwise as `make_sender`."""
    if connector == "nixl":
        from kv_transfer.nixl import NixlReceiver

        return NixlReceiver(region, worker_name, tether)
    if connector == "inproc":
        from kv_transfer.inproc import InprocReceiver

        return InprocReceiver(region, worker_name, _required(network))
    raise _unknown(connector)


def _required(network: "InprocNetwork | None") -> "InprocNetwork":
    if network is None:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            "kv connector inproc: got no network, expected the InprocNetwork that both sides share; "
            "between processes start with --connector nixl",
        )
    return network


def _unknown(connector: str) -> BatonError:
    return invalid(
        f"kv connector: got {connector!r}, expected one of {', '.join(CONNECTORS)}; start with --connector nixl"
    )
