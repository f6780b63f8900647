"""What is asked of a server rather than of a model: models, health, readiness, version."""

import time
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request

from baton.errors import BatonError, ErrorCode
from baton.rpc import inference_pb2
from baton.types import Role
from gateway.http.call import make_call
from gateway.http.errors import json_response
from gateway.http.front import Answer, Front
from gateway.pool import Pool


class ModelCard(msgspec.Struct):
    """A served model."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "baton"


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


class Health(msgspec.Struct):
    """How the server is."""

    status: str


class Version(msgspec.Struct):
    """Which release it is."""

    version: str


class StatusEndpoints:
    """They need no body and no worker."""

    def __init__(self, front: Front, pool: Pool) -> None:
        self._front = front
        self._pool = pool
        self._started = int(time.time())

    async def models(self, request: Request) -> Answer:
        """The one served model."""
        return json_response(ModelList(await self._cards(request)))

    async def model(self, request: Request) -> Answer:
        """Raises:
        BatonError: NOT_FOUND for a model that is not served.
        """
        name = request.path_params["name"]
        for card in await self._cards(request):
            if card.id == name:
                return json_response(card)
        raise BatonError(
            ErrorCode.NOT_FOUND, f"model: got {name[:128]!r}, expected one of: {self._front.model}; change it"
        )

    async def health(self, request: Request) -> Answer:
        """The process answers."""
        return json_response(Health("ok"))

    async def ready(self, request: Request) -> Answer:
        """Raises:
        BatonError: UNAVAILABLE while there is no worker that could decode.
        """
        if not (self._pool.workers(Role.DECODE) or self._pool.workers(Role.AGGREGATED)):
            raise BatonError(ErrorCode.UNAVAILABLE, "no decode worker is registered; start one", retry_after_s=1.0)
        return json_response(Health("ready"))

    async def version(self, request: Request) -> Answer:
        """Of the package."""
        return json_response(Version(version("baton")))

    async def _cards(self, request: Request) -> list[ModelCard]:
        context: Any = make_call(request, 0.0)
        response = await self._front.service.ListModels(inference_pb2.ListModelsRequest(), context)
        return [ModelCard(model.name, self._started, model.max_model_len) for model in response.models]
