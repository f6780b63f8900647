"""Services that several files of tests use."""

from collections.abc import Iterator

import pytest

from tests.fakes.redis_server import RedisServer


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.start_if_stopped()
    shared_server.client.flushall()
    return shared_server
