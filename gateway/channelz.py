"""gRPC's channelz, where the package grpcio-channelz is installed: connections and calls of this process."""

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import grpc

from gateway.access.access import Access

SERVICE_NAME = "grpc.channelz.v1.Channelz"
_METHODS = (
    "GetTopChannels",
    "GetServers",
    "GetServer",
    "GetServerSockets",
    "GetChannel",
    "GetSubchannel",
    "GetSocket",
)

logger = logging.getLogger(__name__)


def add_channelz(server: grpc.aio.Server, access: Access) -> bool:
    """For administrators, since it shows everybody's addresses. False where the package is missing."""
    try:
        package = import_module("grpc_channelz.v1")
        service = import_module("grpc_channelz.v1.channelz").aio.ChannelzServicer
        stubs = import_module("grpc_channelz.v1.channelz_pb2_grpc")
    except ImportError as error:
        logger.debug("no channelz: %s", error)
        return False
    assert package is not None
    guarded = type("Guarded", (service,), {name: _guard(getattr(service, name), access) for name in _METHODS})
    stubs.add_ChannelzServicer_to_server(guarded(), server)
    return True


def _guard(method: Any, access: Access) -> Callable[..., Any]:
    async def call(request: Any, context: Any) -> Any:
        access.check_admin(context)
        return await method(request, context)

    return staticmethod(call)
